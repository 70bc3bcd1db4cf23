//! Unsafe code stands in few files, each with its reason at the head and at each use.

use super::finding::{Exception, Finding, assert_none, except};
use super::source::{Source, workspace};

/// The files that may hold unsafe code. Each must say at its head why ("Unsafe because ...").
const ALLOWED: &[Exception] = &[
    Exception {
        path: "mempool/src/dma.rs",
        reason: "views bytes that a peer can write as atomics",
    },
    Exception {
        path: "mempool/src/ring/mapped.rs",
        reason: "turns an offset into an atomic",
    },
    Exception {
        path: "mempool/src/ring/spsc.rs",
        reason: "moves values in and out of uninitialised slots",
    },
    Exception {
        path: "mempool/src/sys.rs",
        reason: "calls the kernel",
    },
    Exception {
        path: "pmd/src/verbs/sys/cm.rs",
        reason: "calls librdmacm",
    },
    Exception {
        path: "pmd/src/verbs/sys/device.rs",
        reason: "calls libibverbs",
    },
    Exception {
        path: "pmd/src/verbs/sys/grace.rs",
        reason: "calls the kernel",
    },
    Exception {
        path: "pmd/src/verbs/sys/loopback.rs",
        reason: "calls libibverbs for the probe, which does what the driver never does",
    },
    Exception {
        path: "pmd/src/verbs/sys/objects.rs",
        reason: "calls libibverbs and owns what it returns",
    },
    Exception {
        path: "pmd/src/verbs/sys/post.rs",
        reason: "posts through libibverbs",
    },
    Exception {
        path: "pmd/src/verbs/sys/send_list.rs",
        reason: "builds the lists that libibverbs reads",
    },
    Exception {
        path: "pmd/src/verbs/sys/table.rs",
        reason: "a path reads pointers that control calls replace",
    },
    Exception {
        path: "pmd/src/verbs/sys/wc.rs",
        reason: "reads what libibverbs writes",
    },
    Exception {
        path: "runtime/tests/proof/sealed.rs",
        reason: "a global allocator and a seccomp filter, for the proof that the data path needs neither allocator nor kernel",
    },
];

fn unsafe_outside_the_list(sources: &[Source]) -> Vec<Finding> {
    each_unsafe(sources, |_, _| {
        Some("unsafe code in a file that tidy does not list")
    })
}

fn unsafe_without_reason(sources: &[Source]) -> Vec<Finding> {
    let mut findings = each_unsafe(sources, |source, line| {
        let reason = reason_above(source, line);
        let given = reason.contains("SAFETY:") || reason.contains("# Safety");
        (!given).then_some("unsafe code without `SAFETY:` (or, on a function, `# Safety`) above it")
    });
    for source in sources.iter().filter(|source| source.is_rust()) {
        let uses = source.tokens().iter().any(|token| token.text == "unsafe");
        let mut head = source
            .text
            .lines()
            .take_while(|line| line.starts_with("//"));
        if uses && !head.any(|line| line.to_lowercase().contains("unsafe")) {
            let what = "the file's head does not say why it is unsafe";
            findings.push(Finding::new(source, 1, what));
        }
    }
    findings
}

/// `allow(unsafe_code)` opens a module whole, so it stands on a listed module or not at all.
fn allowed_modules(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        let tokens = source.tokens();
        for (at, token) in tokens.iter().enumerate() {
            let lifts = ["allow", "expect", "warn"].contains(&token.text);
            let names = |t: &&super::token::Token<'_>| t.text == "unsafe_code";
            if !lifts || tokens[at..].iter().take(6).find(names).is_none() {
                continue;
            }
            let listed = ALLOWED.iter().any(|file| file.path == source.path);
            let behind = tokens[at..].iter().skip_while(|t| t.text != "mod").nth(1);
            let module = behind
                .filter(|name| name.line <= token.line + 2)
                .map_or("", |t| t.text);
            let opens = |file: &Exception| file.path.ends_with(&format!("/{module}.rs"));
            if !listed && !ALLOWED.iter().any(opens) {
                let what = "lifts the ban on unsafe code for something that tidy does not list";
                findings.push(Finding::new(source, token.line, what));
            }
        }
    }
    findings
}

fn each_unsafe(
    sources: &[Source],
    judge: impl Fn(&Source, usize) -> Option<&'static str>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        for token in source
            .tokens()
            .iter()
            .filter(|token| token.text == "unsafe")
        {
            if let Some(what) = judge(source, token.line) {
                findings.push(Finding::new(source, token.line, what));
            }
        }
    }
    findings
}

/// The comment above a statement or item: upwards from its line over the rest of its statement and its attributes.
fn reason_above(source: &Source, line: usize) -> String {
    let code: Vec<_> = source.code.lines().collect();
    let comments: Vec<_> = source.comments.lines().collect();
    let mut reason = String::new();
    for at in (0..line - 1).rev() {
        let code = code[at].trim();
        let comment = comments[at].trim();
        let attribute = code.starts_with("#[");
        let ends_another = [';', '}', '{'].iter().any(|end| code.ends_with(*end));
        if code.is_empty() && !comment.is_empty() {
            reason.push_str(comment);
        } else if !reason.is_empty() || code.is_empty() || (ends_another && !attribute) {
            break;
        }
    }
    reason
}

#[test]
fn unsafe_code_is_where_it_may_be() {
    let sources = workspace();
    assert_none(&except(unsafe_outside_the_list(&sources), ALLOWED));
    assert_none(&allowed_modules(&sources));
}

#[test]
fn unsafe_code_says_why() {
    assert_none(&unsafe_without_reason(&workspace()));
}

#[test]
fn unlisted_unsafe_code_is_seen() {
    let outside = |text| unsafe_outside_the_list(&[Source::new("pmd/src/work.rs", text)]);
    assert_eq!(except(outside("fn f() { unsafe { g() } }"), &[]).len(), 1);
    assert_eq!(
        outside("#![deny(unsafe_code)] // unsafe\nconst A: &str = \"unsafe\";"),
        []
    );
    let lifts = |text| allowed_modules(&[Source::new("pmd/src/lib.rs", text)]).len();
    assert_eq!(lifts("#[allow(unsafe_code)]\nmod work;"), 1);
    assert_eq!(lifts("#![allow(dead_code, unsafe_code)]"), 1);
    assert_eq!(lifts("#[allow(unsafe_code)]\nmod sys;"), 0);
}

#[test]
fn unreasoned_unsafe_code_is_seen() {
    let count = |text: &str| {
        let text = format!("//! Unsafe because of the test.\n\n{text}");
        unsafe_without_reason(&[Source::new("mempool/src/sys.rs", &text)]).len()
    };
    assert_eq!(count("unsafe impl Send for A {}"), 1);
    assert_eq!(
        count("// SAFETY: a has no thread of its own.\nunsafe impl Send for A {}"),
        0
    );
    assert_eq!(
        count("// SAFETY: for f.\nfn f() {}\nunsafe impl Send for A {}"),
        1
    );
    assert_eq!(count("// SAFETY: g.\nlet a =\n    unsafe { g() };"), 0);
    assert_eq!(
        count("/// # Safety\n/// None.\n#[inline]\nunsafe fn f() {}"),
        0
    );
    let headless = [Source::new(
        "mempool/src/sys.rs",
        "//! Calls.\n\n// SAFETY: g.\nunsafe { g() }",
    )];
    assert_eq!(unsafe_without_reason(&headless).len(), 1);
}
