//! R12: secret files. One that others can read, or that somebody could guess, is refused with its place; what is in it is shown by nothing.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use keyfence::Secret;
use keyfence::config::{Config, ConfigError};

use super::folder::TestFolder;
use super::{CATALOG, LEAST, read};

/// A file whose peer has its secret in `s`.
struct Files(TestFolder);

impl Files {
    fn new(name: &str) -> Self {
        let folder = TestFolder::new(name);
        let peer = "[[peer]]\nname = \"b\"\naddress = \"shm:b\"\nsecret_file = \"s\"\n";
        let file = folder.0.join("f.toml");
        fs::write(file, format!("{LEAST}{peer}")).expect("writable");
        Self(folder)
    }

    fn secret(&self, bytes: &[u8], mode: u32) {
        let file = self.0.0.join("s");
        fs::write(&file, bytes).expect("writable");
        fs::set_permissions(&file, Permissions::from_mode(mode)).expect("ours");
    }

    fn load(&self) -> Result<Config, ConfigError> {
        let loaded = Config::load(&self.0.0.join("f.toml"), CATALOG);
        loaded.map_err(|errors| errors.as_slice()[0].clone())
    }

    fn refused(&self) -> ConfigError {
        self.load().expect_err("it won't do")
    }
}

/// 32 bytes that are found if they are anywhere.
const SECRET: &[u8; 32] = b"fUsxvVq3kPzWc8e2TnYh5JgRb7dLm9Aa";

#[test]
fn r12_a_secret_that_others_can_read_is_refused() {
    let files = Files::new("modes");
    let error = files.refused();
    assert_eq!(
        (error.line, error.column, error.key.as_str()),
        (7, 15, "peer.secret_file")
    );
    assert!(error.what.contains("cannot be read"), "{error}");
    for mode in (0..9).map(|bit| 1 << bit).filter(|bit| bit & 0o077 != 0) {
        files.secret(SECRET, 0o600 | mode);
        let error = files.refused();
        let shown = format!("has mode {:03o}", 0o600 | mode);
        assert!(error.what.contains(&shown), "{error}");
        assert!(error.allowed.contains("chmod 600"), "{error}");
    }
    for mode in [0o600, 0o400, 0o700] {
        files.secret(SECRET, mode);
        assert!(files.load().is_ok(), "{mode:o}");
    }
}

#[test]
fn r12_a_secret_that_is_too_short_or_too_long_is_refused() {
    let files = Files::new("lengths");
    for (len, what) in [
        (0, "is empty"),
        (1, "has 1 bytes, which is too short"),
        (31, "has 31 bytes, which is too short"),
        (4097, "is too long"),
        (1 << 20, "is too long"),
    ] {
        files.secret(&vec![b'x'; len], 0o600);
        let error = files.refused();
        assert!(error.what.contains(what), "{error}");
        assert!(error.allowed.contains("32 to 4096 random bytes"), "{error}");
    }
    for len in [32, 4096] {
        files.secret(&vec![b'x'; len], 0o600);
        assert!(files.load().is_ok());
    }
}

#[test]
fn r12_what_is_no_file_is_no_secret_and_is_not_waited_for() {
    let files = Files::new("kinds");
    let path = files.0.0.join("s");
    fs::create_dir(&path).expect("writable");
    assert!(files.refused().what.ends_with("is no file"));
    fs::remove_dir(&path).expect("ours");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.expect("mkfifo is there").success());
    assert!(files.refused().what.ends_with("is no file"));
}

#[test]
fn r12_a_secret_is_read_once_and_shown_by_nothing() {
    let files = Files::new("shown");
    files.secret(SECRET, 0o600);
    let config = files.load().expect("it will do");
    let peer = &config.peers[0];
    let path = files.0.0.join("s");
    assert_eq!(peer.secret_file.as_deref(), Some(path.as_path()));
    assert_eq!(peer.secret, Some(Secret::new(SECRET).expect("long enough")));
    // What the file has later is of no matter.
    files.secret(b"", 0o600);
    assert!(config.peers[0].secret.is_some());
    let shown = format!("{config:?} {config:#?}");
    let text = String::from_utf8_lossy(SECRET);
    let key = blake3::derive_key("keyfence admission, MAC, 2", SECRET);
    for hidden in [
        text.into_owned(),
        format!("{SECRET:?}"),
        format!("{key:?}"),
        blake3::Hash::from(key).to_string(),
    ] {
        assert!(!shown.contains(&hidden));
    }
    assert!(shown.contains("Secret(..)"));
    // Nor do errors show the start of a file that is no secret.
    files.secret(&SECRET[..31], 0o600);
    let error = files.refused().to_string();
    assert!(!error.contains("fUsx"), "{error}");
}

#[test]
fn a_text_alone_reads_no_secret() {
    let source =
        format!("{LEAST}[[peer]]\nname = \"b\"\naddress = \"shm:b\"\nsecret_file = \"s\"\n");
    let config = read(&source);
    assert_eq!(config.peers[0].secret, None);
    assert!(config.peers[0].secret_file.is_some());
}
