//! The file to be copied, and the copy: written beside its final name, renamed when it is whole, removed when it is not.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file to be copied.
pub struct Source {
    /// Open for reading.
    pub file: File,
    /// Its bytes when it was opened.
    pub bytes: u64,
    metadata: Metadata,
}

/// The copy while it is not finished. Dropped, it is removed.
pub struct Destination {
    /// Open for writing and reading.
    pub file: File,
    partial: PathBuf,
    target: PathBuf,
    finished: bool,
}

/// Names that are tried for the unfinished copy: one may be left from a process of this number that was killed.
const ATTEMPTS: u32 = 100;

impl Source {
    /// Opens a regular file, or says why it can't be copied.
    pub fn open(path: &Path) -> Result<Self, String> {
        let wrong = |error: io::Error| format!("{}: {error}", path.display());
        // Without waiting for a writer: a FIFO is refused below.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open(path).map_err(wrong)?;
        let metadata = file.metadata().map_err(wrong)?;
        if metadata.is_dir() {
            return Err(format!("{}: is a directory; name a file", path.display()));
        }
        if !metadata.is_file() {
            let path = path.display();
            return Err(format!(
                "{path}: is not a regular file, whose size is known"
            ));
        }
        Ok(Self {
            file,
            bytes: metadata.len(),
            metadata,
        })
    }
}

impl Destination {
    /// Creates the unfinished copy beside `path`, with the permissions of the file that it replaces, else of `source`.
    pub fn create(path: &Path, source: &Source) -> Result<Self, String> {
        let wrong = |error: io::Error| format!("{}: {error}", path.display());
        // A link is followed: what it names is replaced, not the link.
        let target = match fs::canonicalize(path) {
            Ok(target) => target,
            Err(error) if error.kind() == ErrorKind::NotFound => path.to_owned(),
            Err(error) => return Err(wrong(error)),
        };
        let mut mode = source.metadata.mode() & 0o777;
        let replaces = target.exists();
        if replaces {
            let there = fs::metadata(&target).map_err(wrong)?;
            if there.is_dir() {
                return Err(format!("{}: is a directory; name a file", path.display()));
            }
            if !there.is_file() {
                return Err(format!("{}: is not a regular file", path.display()));
            }
            if (there.dev(), there.ino()) == (source.metadata.dev(), source.metadata.ino()) {
                return Err(format!("{}: is the file to be copied", path.display()));
            }
            OpenOptions::new()
                .write(true)
                .open(&target)
                .map_err(wrong)?;
            mode = there.mode() & 0o777;
        }
        let (file, partial) = create_beside(&target, mode).map_err(wrong)?;
        let destination = Self {
            file,
            partial,
            target,
            finished: false,
        };
        if replaces {
            let permissions = fs::metadata(&destination.target)
                .map_err(wrong)?
                .permissions();
            destination
                .file
                .set_permissions(permissions)
                .map_err(wrong)?;
        }
        Ok(destination)
    }

    /// The unfinished copy's name.
    pub fn partial(&self) -> &Path {
        &self.partial
    }

    /// Makes sure of the bytes on the disk, reads them back and gives their digest; `None` if `go_on`, which is told how many bytes are
    /// read, says no.
    pub fn digest(&self, mut go_on: impl FnMut(u64) -> bool) -> io::Result<Option<blake3::Hash>> {
        self.file.sync_all()?;
        let mut hasher = blake3::Hasher::new();
        let mut file = File::open(&self.partial)?;
        let mut bytes = vec![0; 1 << 20];
        while go_on(hasher.count()) {
            match file.read(&mut bytes)? {
                0 => return Ok(Some(hasher.finalize())),
                read => hasher.update(&bytes[..read]),
            };
        }
        Ok(None)
    }

    /// Gives the copy its name.
    pub fn finish(mut self) -> io::Result<()> {
        fs::rename(&self.partial, &self.target)?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if !self.finished {
            // There is nothing to be done about a failure, and the copy has failed already.
            let _ = fs::remove_file(&self.partial);
        }
    }
}

fn create_beside(target: &Path, mode: u32) -> io::Result<(File, PathBuf)> {
    let Some(name) = target.file_name() else {
        let message = "has no file name";
        return Err(io::Error::new(ErrorKind::InvalidInput, message));
    };
    let mut last = io::Error::from(ErrorKind::AlreadyExists);
    for attempt in 0..ATTEMPTS {
        let mut partial = std::ffi::OsString::from(".");
        partial.push(name);
        partial.push(format!(".keyfence-{}-{attempt}", std::process::id()));
        let partial = target.with_file_name(partial);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(mode);
        match options.open(&partial) {
            Ok(file) => return Ok((file, partial)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}
