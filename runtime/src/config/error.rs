//! What is wrong with a file: all of it, each with its place.

use core::fmt;

/// One thing that is wrong with a configuration file.
///
/// Displayed as one line, `file:line:column: key: what is wrong; what is allowed`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// The file, as its reader named it.
    pub file: String,
    /// Line, counted from 1; 0 where the file itself could not be read.
    pub line: usize,
    /// Column in characters, counted from 1; 0 where the file itself could not be read.
    pub column: usize,
    /// The key with its tables, such as `limits.context.grants`.
    pub key: String,
    /// What is wrong, with the numbers.
    pub what: String,
    /// What is allowed, with a legal value.
    pub allowed: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            line,
            column,
            key,
            what,
            allowed,
        } = self;
        write!(
            f,
            "{file}:{line}:{column}: {key}: {what}; allowed: {allowed}"
        )
    }
}

/// All that is wrong with a file, in the order of the file. Never empty. Displayed as a line each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigErrors(pub(super) Vec<ConfigError>);

impl ConfigErrors {
    /// The errors.
    #[must_use]
    pub fn as_slice(&self) -> &[ConfigError] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            write!(f, "{newline}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
