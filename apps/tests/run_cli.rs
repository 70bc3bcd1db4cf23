//! `keyfence run` from outside: what is refused before traffic.

mod load;

use load::{Edit, keyfence, loopback, object, text};

#[test]
fn b12_hugepages_that_are_required_and_not_there_are_exit_2_with_the_numbers() {
    let file = loopback(&[
        Edit::memory("page_size", "\"1GiB\""),
        Edit::memory("hugepages", "\"require\""),
    ]);
    let output = keyfence(&["run", file.path(), "--json"])
        .output()
        .expect("the launcher starts");
    let report = object(&output);
    assert_eq!(output.status.code(), Some(2), "{report:#}");
    let message = report["errors"][0]["message"].as_str().expect("a message");
    for words in ["engine left: ", "1GiB", "wanted"] {
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(report["device"], "soft");
}

#[test]
fn b20_a_cpu_that_is_not_there_is_exit_2_and_is_named() {
    let file = loopback(&[Edit::engines("lcores", "[1000]")]);
    let output = keyfence(&["run", file.path(), "--json"])
        .output()
        .expect("the launcher starts");
    let report = object(&output);
    assert_eq!(output.status.code(), Some(2), "{report:#}");
    let message = report["errors"][0]["message"].as_str().expect("a message");
    assert!(message.contains("1000"), "{message}");
}

#[test]
fn a_file_for_something_else_is_exit_2_and_says_what_is_missing() {
    for (file, words) in [
        ("../configs/test_min.toml", "has no [load]"),
        ("none.toml", "cannot be read"),
    ] {
        let output = keyfence(&["run", file])
            .output()
            .expect("the launcher starts");
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        assert!(
            text(&output.stderr).contains(words),
            "{}",
            text(&output.stderr)
        );
    }
}
