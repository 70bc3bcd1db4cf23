//! No text panics, and each refusal has a place in the file and one line.

use proptest::prelude::*;

use super::parse;

const EXAMPLE: &str = include_str!("../../../configs/loopback.toml");

/// Values of every type and of the shapes that are read in their own way.
const VALUES: [&str; 16] = [
    "1",
    "-1",
    "0",
    "99999999999999999999999",
    "1.5",
    "nan",
    "-inf",
    "true",
    "\"\"",
    "\"64MiB\"",
    "\"20ms\"",
    "[]",
    "{}",
    "[{}]",
    "[[1], \"a\"]",
    "1979-05-27",
];

fn assert_sane(source: &str) {
    let Err(errors) = parse(source) else {
        return;
    };
    assert!(!errors.is_empty());
    let lines = source.lines().count().max(1) + 1;
    for error in errors {
        let text = error.to_string();
        assert!(
            (1..=lines).contains(&error.line) && error.column >= 1,
            "{text}"
        );
        assert!(!text.contains(['\n', '\r']), "{text:?}");
        assert!(
            !error.what.is_empty() && !error.allowed.is_empty(),
            "{text}"
        );
        assert!(text.len() < 2000, "{text}");
    }
}

proptest! {
    #[test]
    fn any_text(source in ".{0,200}") {
        assert_sane(&source);
    }

    #[test]
    fn any_toml_marks(source in "[\\[\\]{}=.,\"'#a-c0-9\\n\\\\ ]{0,200}") {
        assert_sane(&source);
    }

    #[test]
    fn an_example_with_pieces_cut_copied_and_torn(cuts in prop::collection::vec((0..EXAMPLE.len(), 0..60usize, ".{0,8}"), 1..6)) {
        let mut source = EXAMPLE.to_owned();
        for (at, len, put) in cuts {
            let at = (0..=at.min(source.len())).rev().find(|at| source.is_char_boundary(*at)).unwrap_or(0);
            let end = (at + len).min(source.len());
            let end = (end..=source.len()).find(|end| source.is_char_boundary(*end)).unwrap_or(source.len());
            source.replace_range(at..end, &put);
        }
        assert_sane(&source);
    }

    #[test]
    fn an_example_with_values_of_any_type(which in prop::collection::vec((0..EXAMPLE.len(), 0..VALUES.len()), 1..8)) {
        let mut lines: Vec<String> = EXAMPLE.lines().map(str::to_owned).collect();
        for (line, value) in which {
            let index = line % lines.len();
            if let Some((key, _)) = lines[index].split_once('=') {
                lines[index] = format!("{key}= {}", VALUES[value]);
            }
        }
        assert_sane(&lines.join("\n"));
    }
}

#[test]
fn deep_and_long_texts() {
    for source in [
        "a=".to_owned() + &"[".repeat(50_000),
        "a.".repeat(50_000) + "a=1",
        "x".repeat(1 << 20) + "=1",
        "x=\"".to_owned() + &"y".repeat(1 << 20),
    ] {
        assert!(parse(&source).is_err());
        assert_sane(&source);
    }
}
