//! The load of loopback.toml, or of chaos.toml, changed for a test: on one CPU, and with minima that a busy machine reaches.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tempfile::TempDir;

/// One load at a time: each takes the CPU that it can get.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file, as long as this lives.
pub struct LoadFile {
    folder: TempDir,
    path: String,
}

impl LoadFile {
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// Another value for a key.
#[derive(Clone, Copy)]
pub struct Edit<'a> {
    table: &'a str,
    key: &'a str,
    value: &'a str,
}

impl<'a> Edit<'a> {
    pub fn load(key: &'a str, value: &'a str) -> Self {
        let table = "[load]";
        Self { table, key, value }
    }

    pub fn memory(key: &'a str, value: &'a str) -> Self {
        let table = "[memory]";
        Self { table, key, value }
    }

    pub fn timeouts(key: &'a str, value: &'a str) -> Self {
        let table = "[timeouts]";
        Self { table, key, value }
    }

    pub fn engines(key: &'a str, value: &'a str) -> Self {
        let table = "[[engine]]";
        Self { table, key, value }
    }
}

/// loopback.toml with these edits, behind those that every test needs.
pub fn loopback(edits: &[Edit<'_>]) -> LoadFile {
    edited_file("loopback.toml", edits)
}

/// chaos.toml likewise.
pub fn chaos(edits: &[Edit<'_>]) -> LoadFile {
    edited_file("chaos.toml", edits)
}

fn edited_file(name: &str, edits: &[Edit<'_>]) -> LoadFile {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/");
    let mut text = fs::read_to_string(format!("{folder}{name}")).expect("it is in the repository");
    // What a busy machine may miss. The seconds that a full run takes are for CI's own script.
    let always = [
        Edit::engines("lcores", "[0]"),
        Edit::timeouts("fence", "\"5s\""),
        Edit::timeouts("invalidate", "\"5s\""),
        Edit::timeouts("shutdown", "\"20s\""),
        Edit::load("min_operations", "1_000"),
        Edit::load("min_reclaims", "1"),
        Edit::load("min_kills_with_ops_in_flight", "0"),
        Edit::load("min_revokes_with_write_in_flight", "0"),
        Edit::load("min_share_percent", "0"),
    ];
    for edit in always.iter().chain(edits) {
        text = edited(&text, edit);
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("load.toml");
    fs::write(&path, text).expect("writable");
    LoadFile {
        path: path.to_str().expect("UTF-8").to_owned(),
        folder,
    }
}

/// Engines that never meet: each has another secret.
pub fn strangers(edits: &[Edit<'_>]) -> LoadFile {
    let file = loopback(edits);
    let mut text = fs::read_to_string(&file.path).expect("just written");
    for (number, peer) in [(0, "right"), (1, "left")] {
        let name = format!("secret-{number}");
        let path = file.folder.path().join(&name);
        let secret: Vec<u8> = (0..32).map(|at| at * 7 + number).collect();
        fs::write(&path, secret).expect("writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
        let address = format!("address = \"local:{peer}\"");
        let with_secret = format!("{address}\nsecret_file = \"{name}\"");
        assert!(text.contains(&address), "{text}");
        text = text.replace(&address, &with_secret);
    }
    fs::write(&file.path, text).expect("writable");
    file
}

fn edited(text: &str, edit: &Edit<'_>) -> String {
    let (mut table, mut found) = ("", false);
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.starts_with('[') {
            table = line.split_whitespace().next().expect("a word");
        }
        let key = line.split('=').next().expect("a part").trim();
        if table == edit.table && key == edit.key {
            found = true;
            lines.push(format!("{key} = {}", edit.value));
        } else {
            lines.push(line.to_owned());
        }
    }
    assert!(found, "the file has no {} in {}", edit.key, edit.table);
    lines.join("\n")
}

pub fn keyfence(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyfence"));
    command.args(arguments).env_remove("RUST_LOG");
    command
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// The one object on stdout.
#[track_caller]
pub fn object(output: &Output) -> Value {
    let stdout = text(&output.stdout);
    assert_eq!(
        stdout.lines().count(),
        1,
        "{stdout}{}",
        text(&output.stderr)
    );
    let object: Value = serde_json::from_str(stdout).expect("one JSON object");
    assert_eq!(object["version"], 1);
    object
}
