//! Code as words and punctuation.

/// A word, a number, `::`, or one character of punctuation.
#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    pub text: &'a str,
    /// Counted from 1.
    pub line: usize,
}

impl Token<'_> {
    pub fn is_word(&self) -> bool {
        self.text
            .starts_with(|c: char| c.is_alphanumeric() || c == '_')
    }
}

/// The tokens of code whose comments and strings are blanked out.
pub fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
            let len = match word {
                Some(0) if rest.starts_with("::") => 2,
                Some(0) => first.len_utf8(),
                Some(len) => len,
                None => rest.len(),
            };
            let (text, behind) = rest.split_at(len);
            tokens.push(Token {
                text,
                line: index + 1,
            });
            rest = behind.trim_start();
        }
    }
    tokens
}

/// The index of the brace that closes the one at `open`, or of the last token.
pub fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0usize;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "{" => depth += 1,
            "}" if depth == 1 => return i,
            "}" => depth -= 1,
            _ => {}
        }
    }
    tokens.len().saturating_sub(1)
}

#[test]
fn code_falls_into_words_and_punctuation() {
    let texts: Vec<_> = tokens("a::b_1\n<T>{ x }")
        .iter()
        .map(|t| (t.text, t.line))
        .collect();
    let second = ["<", "T", ">", "{", "x", "}"].map(|text| (text, 2));
    assert_eq!(texts[..3], [("a", 1), ("::", 1), ("b_1", 1)]);
    assert_eq!(texts[3..], second);
}

#[test]
fn a_brace_is_closed_by_its_own() {
    let tokens = tokens("a { b { } } c { }");
    assert_eq!(closing(&tokens, 1), 5);
}
