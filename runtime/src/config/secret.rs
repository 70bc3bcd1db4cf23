//! Reads the secret files of the peers, once: a secret that others can read is none.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::PeerConfig;
use super::report::{self, Report};
use crate::session::Secret;

/// Makes the paths of secret files start at `folder`, reads them, and refuses the files that won't do.
pub(super) fn read(peers: &mut [PeerConfig], folder: &Path, report: &mut Report<'_>) {
    for (index, peer) in peers.iter_mut().enumerate() {
        let key = report::Path::of(&format!("peer[{index}].secret_file"));
        let Some(file) = peer.secret_file.as_mut().filter(|_| report.is_sound(&key)) else {
            continue;
        };
        *file = folder.join(&file);
        match secret_of(file) {
            Ok(secret) => peer.secret = Some(secret),
            Err(what) => {
                let shown = file.display().to_string();
                report.refuse(&key, format!("{shown:?} {what}"), allowed());
            }
        }
    }
}

fn allowed() -> String {
    let (least, most) = (Secret::LEAST_BYTES, Secret::MOST_BYTES);
    format!(
        "a file of {least} to {most} random bytes that nobody but its owner can read (chmod 600)"
    )
}

/// The secret in a file, or what is wrong with the file. What is looked at is what is read: the file is opened first.
fn secret_of(file: &Path) -> Result<Secret, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    // Else opening a pipe would wait for its writer.
    let mut options = File::options();
    let opened = options.read(true).custom_flags(libc::O_NONBLOCK).open(file);
    let opened = opened.map_err(unreadable)?;
    check(&opened.metadata().map_err(unreadable)?)?;
    let mut bytes = Vec::with_capacity(Secret::MOST_BYTES + 1);
    let mut most = opened.take(Secret::MOST_BYTES as u64 + 1);
    most.read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.is_empty() {
        return Err("is empty".into());
    }
    let secret = Secret::new(&bytes).map_err(|_| wrong_length(bytes.len()))?;
    Ok(secret)
}

fn check(metadata: &Metadata) -> Result<(), String> {
    if !metadata.is_file() {
        return Err("is no file".into());
    }
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(format!("has mode {mode:03o}, so others can reach it"));
    }
    Ok(())
}

fn wrong_length(got: usize) -> String {
    if got < Secret::LEAST_BYTES {
        format!("has {got} bytes, which is too short for a secret")
    } else {
        "is too long for a secret".into()
    }
}
