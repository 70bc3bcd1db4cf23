//! Names of engines and contexts on the wire.

use core::fmt;

use thiserror::Error;

/// The most bytes of a name.
pub const MAX_NAME_BYTES: usize = 63;

/// A name that an engine or a context can have: UTF-8, 1 to [`MAX_NAME_BYTES`] bytes, no control characters (a peer's name ends up
/// in this engine's log).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Name<'a>(&'a str);

impl<'a> Name<'a> {
    /// The name, if it can be one.
    ///
    /// # Errors
    /// [`NameError`] says what is wrong with it.
    pub fn new(name: &'a str) -> Result<Self, NameError> {
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if name.len() > MAX_NAME_BYTES {
            return Err(NameError::TooLong { got: name.len() });
        }
        if name.chars().any(char::is_control) {
            return Err(NameError::Control);
        }
        Ok(Self(name))
    }

    /// The name from the wire.
    pub(super) fn from_wire(bytes: &'a [u8]) -> Result<Self, NameError> {
        Self::new(core::str::from_utf8(bytes).map_err(|_| NameError::NotUtf8)?)
    }

    /// Its text.
    #[must_use]
    pub const fn as_str(&self) -> &'a str {
        self.0
    }

    /// Its length as the wire has it.
    pub(super) const fn wire_len(&self) -> u8 {
        // At most MAX_NAME_BYTES by construction.
        self.0.len() as u8
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Why some text is no name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NameError {
    /// No bytes.
    #[error("an empty name; a name has 1 to {MAX_NAME_BYTES} bytes")]
    Empty,
    /// Too many bytes.
    #[error("a name of {got} bytes; a name has 1 to {MAX_NAME_BYTES}")]
    TooLong {
        /// Bytes of the text.
        got: usize,
    },
    /// Not UTF-8.
    #[error("a name that is not UTF-8")]
    NotUtf8,
    /// Line ends, escapes and the like.
    #[error("a name with control characters")]
    Control,
}
