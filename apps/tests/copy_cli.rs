//! `keyfence copy` from outside: whole copies, kills, refusals, signals. Two lcores a copy: one copy at a time.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tempfile::TempDir;

const MIB: usize = 1 << 20;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A folder, and the right to the CPUs.
struct Scene {
    folder: TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Scene {
    fn new() -> Self {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        Self {
            folder: tempfile::tempdir().expect("a temporary folder"),
            _turn: turn,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file in which no two blocks are alike.
    fn file(&self, name: &str, bytes: usize) -> PathBuf {
        let mut content = vec![0; bytes];
        blake3::Hasher::new()
            .update(name.as_bytes())
            .finalize_xof()
            .fill(&mut content);
        fs::write(self.path(name), content).expect("writable");
        self.path(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).expect("readable");
        let name = |entry: std::io::Result<fs::DirEntry>| {
            let entry = entry.expect("readable");
            entry.file_name().into_string().expect("UTF-8")
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }
}

fn copy(source: &Path, destination: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyfence"));
    command.arg("copy").arg(source).arg(destination).args(more);
    command.arg("--json").env_remove("RUST_LOG");
    command
}

fn run(mut command: Command) -> Output {
    command.output().expect("the launcher starts")
}

/// The one object on stdout.
#[track_caller]
fn object(output: &Output) -> Value {
    let stdout = std::str::from_utf8(&output.stdout).expect("UTF-8");
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    let object: Value = serde_json::from_str(stdout).expect("one JSON object");
    assert_eq!(
        (&object["version"], &object["command"]),
        (&1.into(), &"copy".into())
    );
    assert_eq!(object["ok"], output.status.success());
    object
}

#[track_caller]
fn number(object: &Value, path: &str) -> u64 {
    let value = object.pointer(path);
    let number = value.and_then(Value::as_u64);
    number.unwrap_or_else(|| panic!("{path} in {object}"))
}

/// Exit 0, the same bytes, the right digest, and nothing wrong.
#[track_caller]
fn assert_copied(output: &Output, source: &Path, destination: &Path) -> Value {
    let object = object(output);
    assert_eq!(output.status.code(), Some(0), "{object}");
    assert_same(&object, source, destination);
    for check in [
        "late_bytes",
        "late_reads",
        "stale_keys",
        "open_wrs",
        "bystander_errors",
        "unfinished_ops",
        "leaked_grants",
    ] {
        assert_eq!(number(&object, &format!("/checks/{check}")), 0, "{object}");
    }
    assert_eq!(object["checks"]["books_balance"], true, "{object}");
    assert_eq!(object["interrupted"], false);
    assert_eq!(number(&object, "/reclaim/quarantined"), 0, "{object}");
    object
}

#[track_caller]
fn assert_same(object: &Value, source: &Path, destination: &Path) {
    let content = fs::read(source).expect("readable");
    assert!(
        content == fs::read(destination).expect("the copy is there"),
        "the bytes differ"
    );
    let digest = format!("blake3:{}", blake3::hash(&content).to_hex());
    assert_eq!(object["copy"]["digest"], digest);
    let bytes = content.len() as u64;
    assert_eq!(number(object, "/copy/bytes"), bytes);
    let resent = number(object, "/copy/resent_bytes");
    let device = number(object, "/copy/device_bytes");
    assert!((bytes..=bytes + resent).contains(&device), "{object}");
}

/// A copy under kills must last for more than ten intervals on a machine that copies a GiB in a second.
const KILLED_BYTES: usize = 256 * MIB;

/// Copies under kills, at the shortest of some intervals that the machine can keep up with: too short a one is an error of its own, too long a
/// one gives no ten kills.
#[track_caller]
fn assert_killed(source: &Path, destination: &Path, window_bytes: u64, flags: &[&str]) {
    for every_ms in [5, 10, 20, 40, 80] {
        let every = format!("{every_ms}ms");
        let flags = [flags, &["--kill-every", &every]].concat();
        let output = run(copy(source, destination, &flags));
        let object = object(&output);
        let kills = number(&object, "/copy/kills");
        let resent = number(&object, "/copy/resent_bytes");
        assert!(resent <= kills * window_bytes, "{object}");
        if output.status.code() == Some(1) && object["errors"].as_array().map(Vec::len) == Some(1) {
            let message = object["errors"][0]["message"].as_str().expect("a message");
            assert!(
                message.contains("at least 0.8 an interval wanted"),
                "{message}"
            );
            assert_same(&object, source, destination);
            continue;
        }
        assert_copied(&output, source, destination);
        let elapsed_s = object["copy"]["duration_s"].as_f64().expect("a number");
        let intervals = elapsed_s * 1e3 / f64::from(every_ms);
        assert!(kills >= 10 && kills as f64 >= 0.8 * intervals, "{object}");
        assert!(number(&object, "/reclaim/contexts_reclaimed") >= kills);
        assert!(number(&object, "/reclaim/grants_zapped") >= kills);
        assert!(number(&object, "/reclaim/reclaim_ns/max") > 0, "{object}");
        return;
    }
    panic!("no interval was long enough");
}

#[test]
fn files_of_all_sizes_are_copied() {
    let scene = Scene::new();
    for bytes in [0, 1, 4095, 65_537, 3 * MIB + 13] {
        let source = scene.file(&format!("{bytes}"), bytes);
        let destination = scene.path(&format!("{bytes}.copy"));
        let object = assert_copied(
            &run(copy(&source, &destination, &[])),
            &source,
            &destination,
        );
        assert_eq!(number(&object, "/copy/kills"), 0);
        assert_eq!(number(&object, "/copy/resent_bytes"), 0);
    }
    let hidden = scene
        .names()
        .into_iter()
        .filter(|name| name.starts_with('.'));
    assert_eq!(hidden.count(), 0, "nothing unfinished is left");
}

#[test]
fn windows_that_are_no_whole_number_of_blocks_are_never_exceeded() {
    let scene = Scene::new();
    let source = scene.file("source", 5 * MIB + 7);
    for (contexts, window) in [("1", "16KiB"), ("7", "100001"), ("2", "64MiB")] {
        let destination = scene.path(window);
        let flags = ["--contexts", contexts, "--window", window];
        let output = run(copy(&source, &destination, &flags));
        assert_copied(&output, &source, &destination);
    }
}

#[test]
fn r1_contexts_that_die_in_the_middle_lose_and_alter_nothing() {
    let scene = Scene::new();
    let source = scene.file("source", KILLED_BYTES);
    assert_killed(&source, &scene.path("copy"), MIB as u64, &[]);
}

#[test]
fn b01_a_copy_on_one_cpu_under_kills_makes_progress() {
    let scene = Scene::new();
    let source = scene.file("source", KILLED_BYTES);
    let destination = scene.path("copy");
    // A thread's affinity is what its children start with.
    let on_one_cpu = std::thread::spawn(move || {
        let cpus = core_affinity::get_core_ids().expect("the allowed CPUs");
        assert!(core_affinity::set_for_current(cpus[0]));
        let flags = ["--window", "256KiB", "--contexts", "16"];
        assert_killed(&source, &destination, 256 << 10, &flags);
    });
    on_one_cpu.join().expect("the copy is right");
}

#[test]
fn a_copy_too_short_for_ten_kills_says_so_and_is_whole_all_the_same() {
    let scene = Scene::new();
    let source = scene.file("source", 1000);
    let destination = scene.path("copy");
    let output = run(copy(&source, &destination, &["--kill-every", "1s"]));
    let object = object(&output);
    assert_eq!(output.status.code(), Some(1), "{object}");
    let message = object["errors"][0]["message"].as_str().expect("a message");
    assert!(
        message.starts_with("0 kills, at least 10 wanted"),
        "{message}"
    );
    assert_same(&object, &source, &destination);
}

#[test]
fn a_file_that_is_there_is_replaced_through_a_link_too() {
    let scene = Scene::new();
    let source = scene.file("source", 10_000);
    let destination = scene.file("destination", 20_000);
    let link = scene.path("link");
    std::os::unix::fs::symlink(&destination, &link).expect("a link");
    assert_copied(&run(copy(&source, &link, &[])), &source, &destination);
    assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
}

#[test]
fn bad_paths_are_refused_and_nothing_is_touched() {
    let scene = Scene::new();
    let source = scene.file("source", 1000);
    let alias = scene.path("alias");
    std::os::unix::fs::symlink(&source, &alias).expect("a link");
    let folder = scene.folder.path();
    let before = scene.names();
    let cases = [
        (
            scene.path("missing"),
            scene.path("copy"),
            "missing: No such file",
        ),
        (
            folder.to_owned(),
            scene.path("copy"),
            "is a directory; name a file",
        ),
        (
            PathBuf::from("/dev/null"),
            scene.path("copy"),
            "is not a regular file",
        ),
        (
            source.clone(),
            scene.path("none/copy"),
            "none/copy: No such file",
        ),
        (
            source.clone(),
            folder.to_owned(),
            "is a directory; name a file",
        ),
        (
            source.clone(),
            PathBuf::from("/dev/null"),
            "is not a regular file",
        ),
        (source.clone(), source.clone(), "is the file to be copied"),
        (source.clone(), alias, "is the file to be copied"),
        (source.clone(), PathBuf::from("/proc/copy"), "/proc/copy: "),
    ];
    for (from, to, says) in cases {
        let output = run(copy(&from, &to, &[]));
        let object = object(&output);
        assert_eq!(output.status.code(), Some(2), "{object}");
        let message = object["errors"][0]["message"].as_str().expect("a message");
        assert!(message.contains(says), "{message} should say {says}");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.contains(says), "{stderr}");
    }
    assert_eq!(scene.names(), before);
    assert_eq!(fs::metadata(&source).expect("there").len(), 1000);
}

#[test]
fn bad_values_are_refused_with_what_is_allowed() {
    let scene = Scene::new();
    let source = scene.file("source", 1000);
    let destination = scene.path("copy");
    let cases: [(&[&str], &str); 8] = [
        (&["--window", "1KiB"], "allowed: 16KiB to 64MiB"),
        (&["--window", "64 MiB"], "allowed: 16KiB to 64MiB"),
        (&["--window", "65MiB"], "allowed: 16KiB to 64MiB"),
        (&["--contexts", "0"], "1..=64"),
        (&["--contexts", "65"], "1..=64"),
        (&["--kill-every", "0ms"], "allowed: a duration such as 20ms"),
        (&["--kill-every", "20"], "allowed: a duration such as 20ms"),
        (
            &["--contexts", "64", "--window", "4MiB"],
            "at most 128MiB together",
        ),
    ];
    for (flags, says) in cases {
        let output = run(copy(&source, &destination, flags));
        let object = object(&output);
        assert_eq!(output.status.code(), Some(2), "{object}");
        let message = object["errors"][0]["message"].as_str().expect("a message");
        assert!(message.contains(says), "{message} should say {says}");
    }
    assert_eq!(scene.names(), ["source"]);
}

#[test]
fn a_disk_that_fills_up_ends_the_copy_and_leaves_the_old_file() {
    let scene = Scene::new();
    let source = scene.file("source", 4 * MIB);
    let destination = scene.file("destination", 1000);
    let before = fs::read(&destination).expect("readable");
    let mut command = Command::new("sh");
    // A limit on a file's size fails a write as a full disk does, and needs no file system of its own.
    let script = "trap '' XFSZ; ulimit -f 1024; exec \"$0\" copy \"$1\" \"$2\" --json";
    command.args(["-c", script, env!("CARGO_BIN_EXE_keyfence")]);
    command.arg(&source).arg(&destination);
    let output = run(command);
    let object = object(&output);
    assert_eq!(output.status.code(), Some(2), "{object}");
    let message = object["errors"][0]["message"].as_str().expect("a message");
    assert!(message.contains("writing the copy at byte"), "{message}");
    assert_eq!(fs::read(&destination).expect("readable"), before);
    assert_eq!(scene.names(), ["destination", "source"]);
}

/// Starts a copy that takes minutes, waits for its first line of progress, and signals it.
fn signalled(scene: &Scene, signals: &str) -> Output {
    let source = scene.path("source");
    let file = File::create(&source).expect("writable");
    // A file of holes takes no room.
    file.set_len(64 << 30).expect("a large file");
    let flags = ["--contexts", "1", "--window", "16KiB"];
    let mut command = copy(&source, &scene.path("copy"), &flags);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the launcher starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    stderr.read_line(&mut line).expect("a line");
    assert!(line.starts_with("copying: "), "{line}");
    let script = signals.replace("PID", &child.id().to_string());
    let sent = Command::new("sh").args(["-c", &script]).status();
    assert!(sent.expect("a shell").success());
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).expect("UTF-8");
    child.wait_with_output().expect("it ends")
}

#[test]
fn a_signal_ends_the_copy_with_a_report_and_without_a_file() {
    for signal in ["INT", "TERM", "HUP"] {
        let scene = Scene::new();
        let output = signalled(&scene, &format!("kill -{signal} PID"));
        let object = object(&output);
        assert_eq!(output.status.code(), Some(1), "{object}");
        assert_eq!(object["interrupted"], true, "{object}");
        assert_eq!(
            object["errors"][0]["message"],
            "interrupted: the copy was not made"
        );
        assert_eq!(
            object["errors"].as_array().map(Vec::len),
            Some(1),
            "{object}"
        );
        assert_eq!(object["checks"]["books_balance"], true, "{object}");
        assert_eq!(scene.names(), ["source"]);
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let scene = Scene::new();
    // Stopped meanwhile, so that both have come before it can act on one.
    let output = signalled(
        &scene,
        "kill -STOP PID; kill -INT PID; kill -TERM PID; kill -CONT PID",
    );
    let code = output.status.code();
    assert!(matches!(code, Some(130 | 143)), "{code:?}");
    let object = object(&output);
    let message = object["errors"][0]["message"].as_str().expect("a message");
    assert!(
        message.starts_with("ended at once by a second signal"),
        "{message}"
    );
    assert_eq!(scene.names(), ["source"]);
}
