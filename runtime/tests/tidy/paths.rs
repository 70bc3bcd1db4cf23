//! The paths that a file names, with `use` trees expanded and `super` resolved.

use super::source::Source;
use super::token::{Token, closing};

/// A path of two or more segments, or one of a `use`.
#[derive(Debug, PartialEq, Eq)]
pub struct NamedPath {
    pub line: usize,
    pub segments: Vec<String>,
    /// Whether the segments count from the root of the file's own crate.
    pub in_crate: bool,
}

impl NamedPath {
    /// The first segment below the own crate's root.
    pub fn top(&self) -> Option<&str> {
        self.segments
            .first()
            .filter(|_| self.in_crate)
            .map(String::as_str)
    }
}

pub fn paths(source: &Source) -> Vec<NamedPath> {
    let tokens = source.tokens();
    let mut found = Vec::new();
    let mut modules = file_modules(&source.path);
    let mut ends: Vec<usize> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        while ends.last().is_some_and(|end| *end < at) {
            ends.pop();
            modules.pop();
        }
        let (text, line) = (tokens[at].text, tokens[at].line);
        let mut raw = Vec::new();
        let next = if text == "mod" && text_at(&tokens, at + 2) == "{" {
            modules.push(tokens[at + 1].text.to_owned());
            ends.push(closing(&tokens, at + 2));
            at + 3
        } else if text == "use" && text_at(&tokens, at + 1) != "<" {
            use_tree(&tokens, at + 1, &[], &mut raw)
        } else if tokens[at].is_word() {
            let (segments, end) = plain_path(&tokens, at);
            if segments.len() > 1 {
                raw.push((line, segments));
            }
            end
        } else {
            at + 1
        };
        found.extend(
            raw.into_iter()
                .map(|(line, raw)| resolve(line, raw, &modules)),
        );
        at = next.max(at + 1);
    }
    found
}

fn text_at<'a>(tokens: &[Token<'a>], at: usize) -> &'a str {
    tokens.get(at).map_or("", |token| token.text)
}

/// `a::b::c` from `at` on, and the index behind it.
fn plain_path(tokens: &[Token<'_>], mut at: usize) -> (Vec<String>, usize) {
    let mut segments = vec![tokens[at].text.to_owned()];
    while text_at(tokens, at + 1) == "::" && tokens.get(at + 2).is_some_and(Token::is_word) {
        segments.push(tokens[at + 2].text.to_owned());
        at += 2;
    }
    (segments, at + 1)
}

/// Expands the tree that starts at `at`; gives the index of what ends it.
fn use_tree(
    tokens: &[Token<'_>],
    mut at: usize,
    prefix: &[String],
    out: &mut Vec<(usize, Vec<String>)>,
) -> usize {
    let mut segments = prefix.to_vec();
    let line = tokens.get(at).map_or(0, |token| token.line);
    loop {
        match text_at(tokens, at) {
            "" => return at,
            "::" => at += 1,
            "as" => at += 2,
            "{" => {
                at += 1;
                while !matches!(text_at(tokens, at), "}" | "") {
                    at = use_tree(tokens, at, &segments, out);
                    at += usize::from(text_at(tokens, at) == ",");
                }
                return at + 1;
            }
            "," | "}" | ";" => {
                out.push((line, segments));
                return at;
            }
            text => {
                segments.push(text.to_owned());
                at += 1;
            }
        }
    }
}

/// The module of the file within its crate: `x/src/a/b.rs` is `a::b`.
fn file_modules(path: &str) -> Vec<String> {
    let inside = path.split_once("/src/").map_or("", |(_, inside)| inside);
    let mut modules: Vec<_> = inside
        .trim_end_matches(".rs")
        .split('/')
        .map(str::to_owned)
        .collect();
    if modules
        .last()
        .is_some_and(|last| ["mod", "lib", "main", ""].contains(&last.as_str()))
    {
        modules.pop();
    }
    modules
}

fn resolve(line: usize, raw: Vec<String>, modules: &[String]) -> NamedPath {
    let mut base = match raw[0].as_str() {
        "crate" => Vec::new(),
        "self" | "super" => modules.to_vec(),
        _ => {
            return NamedPath {
                line,
                segments: raw,
                in_crate: false,
            };
        }
    };
    for segment in raw {
        match segment.as_str() {
            "crate" | "self" => {}
            "super" => _ = base.pop(),
            _ => base.push(segment),
        }
    }
    NamedPath {
        line,
        segments: base,
        in_crate: true,
    }
}

#[test]
fn use_trees_and_supers_are_resolved() {
    // `use<>` says what an `impl` type captures: no path.
    let text = "use crate::{a::{self, B as C}, d::*};\nuse std::fmt;\nfn f() { super::x::y() }\n\
                mod tests { use super::super::z; }\nfn g() -> impl I + use<> { core::mem::swap::<u8>() }";
    let found: Vec<_> = paths(&Source::new("p/src/m/n.rs", text))
        .into_iter()
        .map(|path| (path.line, path.segments.join("::"), path.in_crate))
        .collect();
    let wanted = [
        (1, "a", true),
        (1, "a::B", true),
        (1, "d::*", true),
        (2, "std::fmt", false),
        (3, "m::x::y", true),
        (4, "m::z", true),
        (5, "core::mem::swap", false),
    ];
    assert_eq!(
        found,
        wanted.map(|(line, path, inside)| (line, path.to_owned(), inside))
    );
}
