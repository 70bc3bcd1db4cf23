//! The files of the workspace, and which of their bytes are code, comment and string.

use std::path::{Path, PathBuf};
use std::{env, fs};

use super::token::{Token, tokens};

/// A file, by its path from the root of the workspace.
pub struct Source {
    pub path: String,
    pub text: String,
    /// The text with everything but code blanked out; of a string the quotes stay. As long as the text, with its lines.
    pub code: String,
    /// The text with everything but comments blanked out.
    pub comments: String,
    /// The text with everything but the inside of strings blanked out.
    pub strings: String,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Self {
        let kinds = kinds(text.as_bytes());
        let only = |wanted: Kind| -> String {
            let bytes = text.bytes().zip(&kinds);
            let kept = bytes.map(|(byte, kind)| {
                if byte == b'\n' || *kind == wanted {
                    byte
                } else {
                    b' '
                }
            });
            // Runs begin and end at ASCII characters, so no other is cut in two.
            String::from_utf8_lossy(&kept.collect::<Vec<_>>()).into_owned()
        };
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code: only(Kind::Code),
            comments: only(Kind::Comment),
            strings: only(Kind::Text),
        }
    }

    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    pub fn is_in(&self, folders: &[&str]) -> bool {
        folders.iter().any(|folder| {
            let rest = self.path.strip_prefix(folder);
            rest.is_some_and(|rest| rest.starts_with('/') || rest == ".rs")
        })
    }

    pub fn tokens(&self) -> Vec<Token<'_>> {
        tokens(&self.code)
    }

    /// For each line, counted from 1, whether it belongs to tests only.
    pub fn test_lines(&self) -> Vec<bool> {
        let lines = self.text.lines().count() + 2;
        let whole_file = ["/tests/", "/tests.rs", "/benches/benches/", "/examples/"];
        if whole_file.iter().any(|part| self.path.contains(part)) {
            return vec![true; lines];
        }
        let mut marks = vec![false; lines];
        let tokens = self.tokens();
        for at in 0..tokens.len() {
            if let Some(end) = test_item(&tokens, at) {
                marks[tokens[at].line..=tokens[end].line].fill(true);
            }
        }
        marks
    }
}

/// Each text file of the workspace that is not the product of a build.
pub fn workspace() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = root.canonicalize().expect("the workspace exists");
    let mut sources = Vec::new();
    let mut folders: Vec<PathBuf> = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the workspace can be read") {
            let path = entry.expect("an entry can be read").path();
            let name = path
                .file_name()
                .expect("an entry has a name")
                .to_string_lossy();
            let built = ["target", ".git", "corpus", "artifacts", "coverage"].contains(&&*name);
            if built {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                let inside = path.strip_prefix(&root).expect("found below the root");
                sources.push(Source::new(&inside.to_string_lossy(), &text));
            }
        }
    }
    assert!(
        sources.len() > 20,
        "the workspace was not found from {}",
        root.display()
    );
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// If a `#[cfg(test)]` starts at token `at`, the last token of the item behind it.
fn test_item(tokens: &[Token<'_>], at: usize) -> Option<usize> {
    let texts = |from: usize, len: usize| tokens.get(from..from + len);
    let opens = texts(at, 4)?;
    if opens
        .iter()
        .map(|token| token.text)
        .ne(["#", "[", "cfg", "("])
    {
        return None;
    }
    let close = (at..tokens.len()).find(|&i| tokens[i].text == "]")?;
    let words: Vec<_> = tokens[at..close].iter().map(|token| token.text).collect();
    let test = words.iter().position(|word| *word == "test")?;
    // `not(test)` and `any(test, ...)` are built for others too; `all(test, not(loom))` is not.
    if words[..test].ends_with(&["not", "("]) || words.contains(&"any") {
        return None;
    }
    item_end(tokens, close)
}

/// The last token of the item whose attribute ends at token `close`.
pub fn item_end(tokens: &[Token<'_>], close: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (i, token) in tokens.iter().enumerate().skip(close + 1) {
        match token.text {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 && (token.text == ";" || token.text == "}") {
            return Some(i);
        }
    }
    None
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Text,
}

/// The kind of each byte.
fn kinds(text: &[u8]) -> Vec<Kind> {
    let mut kinds = vec![Kind::Code; text.len()];
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let after_word = at > 0 && (text[at - 1].is_ascii_alphanumeric() || text[at - 1] == b'_');
        let (kind, start, len) = if rest.starts_with(b"//") {
            (Kind::Comment, 0, until(rest, b"\n", 0))
        } else if rest.starts_with(b"/*") {
            (Kind::Comment, 0, block_comment(rest))
        } else if let Some(hashes) = raw_string(rest).filter(|_| !after_word) {
            let open = until(rest, b"\"", 0) + 1;
            let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
            (Kind::Text, open, until(rest, &close, open))
        } else if rest[0] == b'"' {
            (Kind::Text, 1, quoted(rest, b'"'))
        } else if rest[0] == b'\'' && is_char(rest) {
            (Kind::Text, 1, quoted(rest, b'\''))
        } else {
            (Kind::Code, 0, 1)
        };
        kinds[at + start..at + len].fill(kind);
        // The closing quote stays code, and must not open another string.
        at += len + usize::from(kind == Kind::Text);
    }
    kinds
}

/// The offset of `end` in `text` from `from` on, or its length.
fn until(text: &[u8], end: &[u8], from: usize) -> usize {
    let mut places = from..text.len();
    places
        .find(|&at| text[at..].starts_with(end))
        .unwrap_or(text.len())
}

fn block_comment(text: &[u8]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// How many `#` a raw string that starts here has.
fn raw_string(text: &[u8]) -> Option<usize> {
    let text = text
        .strip_prefix(b"b")
        .or_else(|| text.strip_prefix(b"c"))
        .unwrap_or(text);
    let text = text.strip_prefix(b"r")?;
    let hashes = text.iter().take_while(|byte| **byte == b'#').count();
    (text.get(hashes) == Some(&b'"')).then_some(hashes)
}

/// The offset of the closing quote.
fn quoted(text: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < text.len() && text[at] != quote {
        at += if text[at] == b'\\' { 2 } else { 1 };
    }
    at.min(text.len())
}

/// Whether the quote that starts here is a character's and not a lifetime's.
fn is_char(text: &[u8]) -> bool {
    match text.get(1) {
        Some(b'\\') => true,
        Some(first) => {
            let bytes = first.leading_ones().max(1) as usize;
            text.get(1 + bytes) == Some(&b'\'')
        }
        None => false,
    }
}

#[test]
fn comments_strings_and_characters_are_told_apart() {
    let text = r##"let a = "x // y { \" "; // z " {
let b = r#"q " {"#; let c = '{'; let d: &'static str = b"}"; /* { /* } */ { */ let e = '\''; f::<'a>('é');"##;
    let source = Source::new("a.rs", text);
    let braces = |of: &str| of.matches(['{', '}']).count();
    assert_eq!(braces(&source.code), 0, "{}", source.code);
    assert_eq!(braces(&source.comments), 4, "{}", source.comments);
    assert_eq!(braces(&source.strings), 4, "{}", source.strings);
    assert!(source.code.contains("let e = '") && source.code.contains("f::<'a>('"));
    for part in [&source.code, &source.comments, &source.strings] {
        assert_eq!(part.lines().count(), 2);
    }
}

#[test]
fn test_lines_are_the_items_behind_cfg_test() {
    let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\nfn c() {}\n#[cfg(not(test))]\nfn d() {}\n\
                #[cfg(all(test, not(loom)))]\nmod e;\nfn f() {}\n";
    let marks = Source::new("x/src/a.rs", text).test_lines();
    let lines: Vec<_> = (1..=11).filter(|line| marks[*line]).collect();
    assert_eq!(lines, [2, 3, 4, 5, 9, 10]);
    assert!(Source::new("x/tests/a.rs", text).test_lines()[1]);
}

#[test]
fn the_workspace_has_this_file() {
    let sources = workspace();
    let this = sources
        .iter()
        .find(|source| source.path == "runtime/tests/tidy/source.rs");
    assert!(this.is_some_and(|source| source.text.contains("the_workspace_has_this_file")));
}
