//! How long a file and a function may be.

use super::finding::{Exception, Finding, assert_none, except};
use super::source::{Source, workspace};
use super::token::{Token, closing};

/// The aim is 300 lines a file and 40 a function; these are the bounds.
const MAX_FILE_LINES: usize = 500;
const MAX_FUNCTION_LINES: usize = 70;

const EXCEPTIONS: &[Exception] = &[];

fn too_long(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        let lines = source.text.lines().count();
        if lines > MAX_FILE_LINES {
            let what = format!("a file of {lines} lines; at most {MAX_FILE_LINES}");
            findings.push(Finding::new(source, lines, what));
        }
        let tokens = source.tokens();
        for (name, start, end) in functions(&tokens) {
            let lines = end - start + 1;
            if lines > MAX_FUNCTION_LINES {
                let what = format!("fn {name} has {lines} lines; at most {MAX_FUNCTION_LINES}");
                findings.push(Finding::new(source, start, what));
            }
        }
    }
    findings
}

/// Name, first and last line of each function that has a body.
fn functions<'a>(tokens: &[Token<'a>]) -> Vec<(&'a str, usize, usize)> {
    let mut found = Vec::new();
    for (at, pair) in tokens.windows(2).enumerate() {
        // `fn(` is a pointer's type; `$` names a macro's function.
        if pair[0].text != "fn" || !(pair[1].is_word() || pair[1].text == "$") {
            continue;
        }
        if let Some(open) = body(tokens, at) {
            found.push((
                pair[1].text,
                pair[0].line,
                tokens[closing(tokens, open)].line,
            ));
        }
    }
    found
}

/// The brace that opens the body of the function at `at`; none for a declaration.
fn body(tokens: &[Token<'_>], at: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (i, token) in tokens.iter().enumerate().skip(at) {
        match token.text {
            "(" | "[" => depth += 1,
            ")" | "]" => depth = depth.saturating_sub(1),
            ";" if depth == 0 => return None,
            "{" if depth == 0 => return Some(i),
            _ => {}
        }
    }
    None
}

#[test]
fn files_and_functions_are_short() {
    assert_none(&except(too_long(&workspace()), EXCEPTIONS));
}

#[test]
fn long_files_and_functions_are_seen() {
    let count = |text: &str| too_long(&[Source::new("a/src/a.rs", text)]).len();
    let lines = |n: usize| "x();\n".repeat(n);
    assert_eq!(count(&lines(500)), 0);
    assert_eq!(count(&lines(501)), 1);
    assert_eq!(count(&format!("fn f() {{\n{}}}", lines(68))), 0);
    assert_eq!(count(&format!("fn f() {{\n{}}}", lines(69))), 1);
    // Braces in strings, characters and comments neither open nor close.
    let braces = "let a = (\"}\", '}'); // }\n";
    assert_eq!(count(&format!("fn f() {{\n{braces}{}}}", lines(69))), 1);
    let opens = "let a = (\"{\", '{'); // {\n";
    assert_eq!(
        count(&format!("fn f() {{\n{opens}}}\nfn g() {{\n{}}}", lines(60))),
        0
    );
    // A long trait of declarations is no long function, and an array's length ends no signature.
    assert_eq!(
        count(&format!("trait T {{\nfn f(a: [u8; 4]);\n{}}}", lines(80))),
        0
    );
    assert_eq!(count(&format!("fn f(a: [u8; 4]) {{\n{}}}", lines(80))), 1);
}
