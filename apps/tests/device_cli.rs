//! The device of a command from outside: what a program says that was built without the driver, or runs where there is no adapter.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn keyfence(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyfence"));
    command.env_remove("RUST_LOG").arg("--json").args(arguments);
    command.output().expect("the launcher starts")
}

/// The command ends before traffic, as one that can't have its device.
#[track_caller]
fn assert_has_no_adapter(arguments: &[&str]) {
    let output = keyfence(arguments);
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(output.status.code(), Some(2), "{report:#}");
    assert_eq!(report["device"], "verbs", "{report:#}");
    let why = report["errors"][0]["message"].as_str().expect("a text");
    let is_said = if cfg!(feature = "verbs") {
        // Which of them is missing depends on the machine; none has this adapter.
        why.contains("install") || why.contains("adapter")
    } else {
        why.contains("built without RDMA adapters") && why.contains("--features verbs")
    };
    assert!(is_said, "{why}");
}

#[test]
fn a_device_that_cannot_be_had_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/verbs.toml");
    let shipped = fs::read_to_string(shipped).expect("readable");
    let named = shipped.replacen("[verbs]\n", "[verbs]\ndevice = \"none0\"\n", 1);
    assert_ne!(named, shipped);
    fs::write(path("verbs.toml"), named).expect("written");
    fs::write(path("verbs.secret"), [7; 32]).expect("written");
    fs::set_permissions(path("verbs.secret"), fs::Permissions::from_mode(0o600)).expect("set");
    assert_has_no_adapter(&["run", &path("verbs.toml")]);

    let device = [
        "--device",
        "verbs",
        "--adapter",
        "none0",
        "--address",
        "127.0.0.1:7471",
    ];
    assert_has_no_adapter(&[&["perf"][..], &device].concat());
    fs::write(path("source"), [1; 4096]).expect("written");
    assert_has_no_adapter(&[&["copy", &path("source"), &path("copy")][..], &device].concat());
    assert!(!Path::new(&path("copy")).exists());

    // The file is good all the same: it may be for another machine.
    let output = keyfence(&["check", &path("verbs.toml")]);
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8_lossy(&output.stdout).contains("built without RDMA adapters");
    assert_eq!(said, !cfg!(feature = "verbs"));
}

#[test]
fn an_adapter_needs_an_address_of_its_own() {
    for address in [
        &["--device", "verbs"][..],
        &["--device", "verbs", "--address", "here"],
    ] {
        let output = keyfence(&[&["perf"], address].concat());
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("HOST:PORT"), "{said}");
    }
}

#[test]
fn an_adapter_is_not_named_in_vain() {
    for named in [["--adapter", "mlx5_0"], ["--address", "127.0.0.1:7471"]] {
        let output = keyfence(&[&["perf"][..], &named].concat());
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("--device verbs"), "{said}");
    }
}
