//! A test that only the feature `plant` builds has `plant` in its name, its module's or its test target's: CI selects these
//! tests by that.

use super::finding::{Finding, assert_none};
use super::source::{Source, item_end, workspace};
use super::token::Token;

fn unselected_tests(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let selected = |source: &&Source| {
        let target = source.path.split_once("/tests/");
        target.is_some_and(|(_, target)| target.contains("plant"))
    };
    let judged = |source: &&Source| source.is_rust() && !selected(source);
    for source in sources.iter().filter(judged) {
        let tokens = source.tokens();
        for at in 0..tokens.len() {
            let Some(gated) = gated_by_plant(source, &tokens, at) else {
                continue;
            };
            let named = |name: &Token<'_>| name.text.contains("plant");
            let item = gated
                .windows(2)
                .find(|pair| ["mod", "fn"].contains(&pair[0].text));
            if tokens[at + 1].text != "!" && item.is_some_and(|pair| named(&pair[1])) {
                continue;
            }
            for name in test_functions(gated).filter(|name| !named(name)) {
                let what = format!(
                    "{} is built with a plant only, and CI does not select it",
                    name.text
                );
                findings.push(Finding::new(source, name.line, what));
            }
        }
    }
    findings
}

/// If an attribute `cfg(feature = "plant")` starts at token `at`: what it stands on, for `#!` the rest of the file.
fn gated_by_plant<'a, 'b>(
    source: &Source,
    tokens: &'b [Token<'a>],
    at: usize,
) -> Option<&'b [Token<'a>]> {
    let inner = usize::from(tokens.get(at + 1)?.text == "!");
    let opens = tokens.get(at + 1 + inner..at + 7 + inner)?;
    let texts = opens.iter().map(|token| token.text);
    if tokens[at].text != "#" || texts.ne(["[", "cfg", "(", "feature", "=", "\""]) {
        return None;
    }
    let line = source.text.lines().nth(tokens[at].line - 1)?;
    let close = (at..tokens.len()).find(|&i| tokens[i].text == "]")?;
    let end = if inner == 1 {
        tokens.len()
    } else {
        item_end(tokens, close)? + 1
    };
    line.contains("\"plant\"").then(|| &tokens[close..end])
}

/// The names of the functions marked as tests.
fn test_functions<'a, 'b>(tokens: &'b [Token<'a>]) -> impl Iterator<Item = &'b Token<'a>> {
    let marks = tokens.windows(3).enumerate();
    let marks = marks.filter(|(_, mark)| mark.iter().map(|t| t.text).eq(["[", "test", "]"]));
    marks.filter_map(|(at, _)| tokens[at..].iter().skip_while(|t| t.text != "fn").nth(1))
}

#[test]
fn ci_selects_each_test_of_a_plant() {
    assert_none(&unselected_tests(&workspace()));
}

#[test]
fn a_test_that_ci_does_not_select_is_seen() {
    let count = |text: &str| unselected_tests(&[Source::new("apps/tests/x.rs", text)]).len();
    let gate = "cfg(feature = \"plant\")";
    assert_eq!(
        count(&format!("#![{gate}]\n#[test]\nfn r3_caught() {{}}")),
        1
    );
    assert_eq!(
        count(&format!(
            "#![{gate}]\nfn run() {{}}\n#[test]\nfn plant_caught() {{}}"
        )),
        0
    );
    assert_eq!(count(&format!("#[{gate}]\n#[test]\nfn caught() {{}}")), 1);
    assert_eq!(
        count(&format!(
            "#[{gate}]\nmod plants {{\n#[test]\nfn caught() {{}} }}"
        )),
        0
    );
    assert_eq!(count("#[cfg(not(feature = \"plant\"))]\nfn other() {}"), 0);
    let whole = format!("#![{gate}]\n#[test]\nfn caught() {{}}");
    let target = Source::new("apps/tests/plants.rs", &whole);
    assert_eq!(unselected_tests(&[target]), []);
}
