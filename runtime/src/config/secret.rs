//! Looks at the secret files of the peers: a secret that others can read is none.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::PeerConfig;
use super::report::{self, Report};

const ALLOWED: &str = "a file that is not empty and that nobody but its owner can read (chmod 600)";

/// Makes the paths of secret files start at `folder`, and refuses the files that won't do.
pub(super) fn check(peers: &mut [PeerConfig], folder: &Path, report: &mut Report<'_>) {
    for (index, peer) in peers.iter_mut().enumerate() {
        let key = report::Path::of(&format!("peer[{index}].secret_file"));
        let Some(file) = peer.secret_file.as_mut().filter(|_| report.is_sound(&key)) else {
            continue;
        };
        *file = folder.join(&file);
        if let Some(what) = what_is_wrong(file) {
            report.refuse(&key, what, ALLOWED.into());
        }
    }
}

fn what_is_wrong(file: &Path) -> Option<String> {
    let shown = file.display().to_string();
    let metadata = match fs::metadata(file) {
        Ok(metadata) => metadata,
        Err(error) => return Some(format!("{shown:?} cannot be read: {error}")),
    };
    let mode = metadata.permissions().mode() & 0o777;
    if !metadata.is_file() {
        return Some(format!("{shown:?} is no file"));
    }
    if mode & 0o077 != 0 {
        return Some(format!(
            "{shown:?} has mode {mode:03o}, so others can reach it"
        ));
    }
    (metadata.len() == 0).then(|| format!("{shown:?} is empty"))
}
