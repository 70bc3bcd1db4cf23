//! The launcher among odd files: outputs that take nothing, sources that are not what they seem.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn keyfence(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyfence"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        let text = String::from_utf8_lossy(&output.stdout);
        panic!("{error}: {:?}, stdout {text:?}", output.status)
    })
}

/// loopback.toml for a second on one CPU, without minima.
fn short_run(dir: &Path) -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/loopback.toml");
    let text = fs::read_to_string(source).unwrap();
    let lines = text.lines().map(|line| match line.split(" = ").next() {
        Some("lcores") => "lcores = [0]".to_owned(),
        Some("duration") => "duration = \"1s\"".to_owned(),
        Some("min_operations" | "min_reclaims") => {
            format!("{} = 1", line.split(" = ").next().unwrap())
        }
        Some(key) if key.starts_with("min_") => format!("{key} = 0"),
        _ => line.to_owned(),
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    let path = dir.join("short.toml");
    fs::write(&path, text).unwrap();
    path
}

/// A hang's limit, and nothing else.
fn end_of(mut child: Child) -> Output {
    let limit = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > limit {
            child.kill().unwrap();
            panic!("it hangs");
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn a_stderr_that_takes_nothing_changes_nothing_about_the_result() {
    let dir = tempfile::tempdir().unwrap();
    let config = short_run(dir.path());
    let output = keyfence(&["run", config.to_str().unwrap(), "--json"])
        .stderr(File::options().write(true).open("/dev/full").unwrap())
        .output()
        .unwrap();
    let report = json(&output);
    assert_eq!(report["command"], "run");
    // A busy machine may fail its checks.
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{:?}",
        output.status
    );
}

#[test]
fn a_source_whose_size_is_not_the_truth_is_not_copied_as_empty() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy");
    let output = keyfence(&["copy", "/proc/self/maps", copy.to_str().unwrap(), "--json"])
        .output()
        .unwrap();
    let report = json(&output);
    let bytes = fs::metadata(&copy).map(|found| found.len());
    assert!(
        report["ok"] == false && bytes.is_err(),
        "{:?}, a copy of {bytes:?} bytes: {report}",
        output.status
    );
}

#[test]
fn a_source_that_grows_meanwhile_is_not_copied_in_part() {
    let dir = tempfile::tempdir().unwrap();
    let [source, copy] = ["source", "copy"].map(|name| dir.path().join(name));
    File::create(&source).unwrap().set_len(64 << 20).unwrap();
    let paths = [source.to_str().unwrap(), copy.to_str().unwrap()];
    let child = keyfence(&["copy", paths[0], paths[1], "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The unfinished copy is made behind the look at the source's size.
    while fs::read_dir(dir.path()).unwrap().count() < 2 {
        std::thread::yield_now();
    }
    let mut file = OpenOptions::new().append(true).open(&source).unwrap();
    file.write_all(b"more").unwrap();
    let output = end_of(child);
    let report = json(&output);
    assert_eq!(report["ok"], false, "{report}");
    assert!(!copy.exists());
}

#[test]
fn a_fifo_is_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let [fifo, copy] = ["fifo", "copy"].map(|name| dir.path().join(name));
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let paths = [fifo.to_str().unwrap(), copy.to_str().unwrap()];
    let child = keyfence(&["copy", paths[0], paths[1], "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = end_of(child);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(json(&output)["ok"], false);
}

/// A limit of file sizes ends the process by SIGXFSZ unless that is caught: no report, and the unfinished copy stays for ever.
#[test]
fn a_limit_of_file_sizes_is_an_error_like_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let [source, copy] = ["source", "copy"].map(|name| dir.path().join(name));
    File::create(&source).unwrap().set_len(4 << 20).unwrap();
    let script = format!(
        "ulimit -f 8; exec {} copy {} {} --json",
        env!("CARGO_BIN_EXE_keyfence"),
        source.display(),
        copy.display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let left = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 1, "{:?}: the unfinished copy is left", output.status);
    assert_eq!(json(&output)["ok"], false);
}

/// A script that sees the exit code alone must not take a report that is nowhere for a good one.
#[test]
fn a_report_that_a_full_disk_does_not_take_is_no_success() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/test_min.toml");
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = keyfence(&["check", example]);
    let output = command.stdout(Stdio::from(full)).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("could not be written to stdout"), "{said}");
}
