//! Collects what is wrong with a file, and turns byte offsets into lines and columns.

use std::collections::{BTreeMap, BTreeSet};

use super::Catalog;
use super::error::{ConfigError, ConfigErrors};

/// Where in a file a key is: `limits.context`, `engine[1].lcores`.
#[derive(Clone, Default)]
pub(super) struct Path {
    /// As people are shown it, without indexes: the line says which.
    shown: String,
    /// As the program finds it again.
    exact: String,
}

impl Path {
    /// The path of one of our own keys, `engine[1].lcores`.
    pub(super) fn of(exact: &str) -> Self {
        let mut shown = String::new();
        for part in exact.split('[') {
            // Behind a bracket stands the index.
            let name = part.split_once(']').map_or(part, |(_, rest)| rest);
            shown.push_str(name);
        }
        Self {
            shown,
            exact: exact.into(),
        }
    }

    /// The path of `name` in this table.
    pub(super) fn key(&self, name: &str) -> Self {
        let name = bare_or_quoted(name);
        let dot = if self.exact.is_empty() { "" } else { "." };
        Self {
            shown: format!("{}{dot}{name}", self.shown),
            exact: format!("{}{dot}{name}", self.exact),
        }
    }

    /// The path of an element of this list.
    pub(super) fn item(&self, index: usize) -> Self {
        Self {
            shown: self.shown.clone(),
            exact: format!("{}[{index}]", self.exact),
        }
    }

    /// The path as people are shown it.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }
}

/// A file's errors so far, and where its keys are.
pub(super) struct Report<'a> {
    file: &'a str,
    source: &'a str,
    /// The names that the file may use.
    pub(super) catalog: Catalog<'a>,
    /// Offset of each line's first byte.
    line_starts: Vec<usize>,
    /// Errors with the offset that they are at.
    errors: Vec<(usize, ConfigError)>,
    /// Offset of each value that was met, by exact path.
    places: BTreeMap<String, usize>,
    /// Exact paths of keys that were refused.
    refused: BTreeSet<String>,
    /// Lines that are no TOML; what was guessed from them is not worth a word.
    broken_lines: BTreeSet<usize>,
}

impl<'a> Report<'a> {
    pub(super) fn new(file: &'a str, source: &'a str, catalog: Catalog<'a>) -> Self {
        let newlines = source
            .bytes()
            .enumerate()
            .filter(|(_, byte)| *byte == b'\n');
        Self {
            file,
            source,
            catalog,
            line_starts: std::iter::once(0)
                .chain(newlines.map(|(at, _)| at + 1))
                .collect(),
            errors: Vec::new(),
            places: BTreeMap::new(),
            refused: BTreeSet::new(),
            broken_lines: BTreeSet::new(),
        }
    }

    /// Notes where the value of a key is.
    pub(super) fn met(&mut self, path: &Path, offset: usize) {
        self.places.insert(path.exact.clone(), offset);
    }

    /// Whether the file says this key.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.places.contains_key(&path.exact)
    }

    /// Whether a check may use the key: it was not refused, and no syntax error has swallowed it.
    pub(super) fn is_sound(&self, path: &Path) -> bool {
        self.broken_lines.is_empty() && !self.refused.contains(&path.exact)
    }

    /// Whether neither the key nor any within it was refused.
    pub(super) fn is_sound_below(&self, path: &Path) -> bool {
        let is_below = |refused: &String| {
            refused
                .strip_prefix(&path.exact)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        self.broken_lines.is_empty() && !self.refused.iter().any(is_below)
    }

    /// An error of TOML itself.
    pub(super) fn refuse_syntax(&mut self, offset: usize, what: &str, allowed: &str) {
        let (line, _) = self.line_and_column(offset);
        self.broken_lines.insert(line);
        self.push(offset, "toml".into(), what.into(), allowed.into());
    }

    /// An error of a key, at `offset`.
    pub(super) fn refuse_at(&mut self, path: &Path, offset: usize, what: String, allowed: String) {
        let (line, _) = self.line_and_column(offset);
        if self.broken_lines.contains(&line) {
            return;
        }
        self.refused.insert(path.exact.clone());
        self.push(offset, path.shown.clone(), what, allowed);
    }

    /// An error of a key where its value is; where the file doesn't say it, at its table.
    pub(super) fn refuse(&mut self, path: &Path, what: String, allowed: String) {
        self.refuse_at(path, self.place(&path.exact), what, allowed);
    }

    /// A check across keys: the first of `keys` is to blame for what `wrong` finds, as what is wrong and what is allowed. Left out
    /// where one of the keys is not sound.
    pub(super) fn check(
        &mut self,
        keys: &[&str],
        wrong: impl FnOnce() -> Option<(String, String)>,
    ) {
        if !keys.iter().all(|key| self.is_sound(&Path::of(key))) {
            return;
        }
        if let (Some((what, allowed)), Some(key)) = (wrong(), keys.first()) {
            self.refuse(&Path::of(key), what, allowed);
        }
    }

    /// A key that has to be there isn't.
    pub(super) fn refuse_missing(&mut self, path: &Path, allowed: String) {
        if self.broken_lines.is_empty() {
            self.refuse(path, "is missing".into(), allowed);
        }
    }

    /// The errors in the order of the file, if there are any.
    pub(super) fn finish(mut self) -> Result<(), ConfigErrors> {
        if self.errors.is_empty() {
            return Ok(());
        }
        self.errors.sort_by_key(|(offset, _)| *offset);
        Err(ConfigErrors(
            self.errors.into_iter().map(|(_, error)| error).collect(),
        ))
    }

    fn push(&mut self, offset: usize, key: String, what: String, allowed: String) {
        let (line, column) = self.line_and_column(offset);
        let file = self.file.escape_debug().to_string();
        self.errors.push((
            offset,
            ConfigError {
                file,
                line,
                column,
                key,
                what,
                allowed,
            },
        ));
    }

    fn place(&self, exact: &str) -> usize {
        let mut path = exact;
        loop {
            if let Some(offset) = self.places.get(path) {
                return *offset;
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = &path[..end],
                None => return 0,
            }
        }
    }

    fn line_and_column(&self, offset: usize) -> (usize, usize) {
        let line = self.line_starts.partition_point(|start| *start <= offset);
        let start = self.line_starts[line - 1];
        let before = self.source.get(start..offset).unwrap_or("");
        // A byte order mark is no column.
        (
            line,
            before.trim_start_matches('\u{feff}').chars().count() + 1,
        )
    }
}

/// A name as TOML would have it, on one line and not too long.
fn bare_or_quoted(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let shortened: String = name.chars().take(64).collect();
    if !name.is_empty() && shortened.len() == name.len() && name.chars().all(is_bare) {
        return shortened;
    }
    format!("{shortened:?}")
}
