//! Calls and types that have no place in some of the sources.

use super::finding::{Exception, Finding, assert_none, except};
use super::source::{Source, workspace};
use super::token::{Token, tokens};

struct Ban {
    name: &'static str,
    /// What is banned, as code. A word stands for that word anywhere.
    code: &'static [&'static str],
    folders: &'static [&'static str],
    /// Whether tests must do without it too.
    tests_too: bool,
    why: &'static str,
    exceptions: &'static [Exception],
}

const EVERYWHERE: &[&str] = &["mempool", "pmd", "runtime", "apps", "benches"];
const LIBRARIES: &[&str] = &["mempool/src", "pmd/src", "runtime/src", "benches/src"];
const STEPPED: &[&str] = &["runtime/src", "pmd/src"];
const DATA_PATH: &[&str] = &[
    "mempool/src",
    "pmd/src/soft",
    "pmd/src/verbs",
    "pmd/src/sim",
    "runtime/src/client",
    "runtime/src/context",
    "runtime/src/engine",
    "runtime/src/event",
    "runtime/src/grant",
    "runtime/src/lane",
    "runtime/src/reclaim",
    "runtime/src/service",
    "runtime/src/session",
    "runtime/src/wire",
];

const BANS: &[Ban] = &[
    Ban {
        name: "unfinished code",
        code: &["todo!", "unimplemented!", "dbg!"],
        folders: EVERYWHERE,
        tests_too: true,
        why: "finish it, or leave it out",
        exceptions: &[],
    },
    Ban {
        name: "printing",
        code: &["print!", "println!", "eprint!", "eprintln!"],
        folders: LIBRARIES,
        tests_too: false,
        why: "a library returns or traces what it has to say; stdout belongs to the launcher",
        exceptions: &[],
    },
    Ban {
        name: "exit",
        code: &[
            "process::exit",
            "process::abort",
            "libc::exit",
            "libc::_exit",
        ],
        folders: LIBRARIES,
        tests_too: false,
        why: "a library does not end its process",
        exceptions: &[],
    },
    Ban {
        name: "std time",
        code: &["Instant", "SystemTime"],
        folders: STEPPED,
        tests_too: false,
        why: "time comes in as an argument, so that a simulator can drive it",
        exceptions: &[Exception {
            path: "pmd/src/quiesce.rs",
            reason: "the deadline of a control call, which waits for an lcore; no poll step reads it",
        }],
    },
    Ban {
        name: "ambient randomness",
        code: &[
            "thread_rng",
            "rand::rng",
            "rand::random",
            "RandomState",
            "DefaultHasher",
        ],
        folders: LIBRARIES,
        tests_too: false,
        why: "randomness comes in as an argument, so that a run can be repeated",
        exceptions: &[],
    },
    Ban {
        name: "hash tables",
        code: &["HashMap", "HashSet"],
        folders: STEPPED,
        tests_too: false,
        why: "their order differs from run to run; use a table by slot, or a BTreeMap off the data path",
        exceptions: &[],
    },
    Ban {
        name: "sleeping",
        code: &["thread::sleep", "libc::usleep", "libc::nanosleep"],
        folders: EVERYWHERE,
        tests_too: true,
        why: "only the idle policy sleeps; a test waits for what it waits for, in poll steps",
        exceptions: &[Exception {
            path: "runtime/src/engine/idle.rs",
            reason: "is the idle policy",
        }],
    },
    Ban {
        name: "other atomics",
        code: &["sync::atomic", "loom::sync"],
        folders: EVERYWHERE,
        tests_too: true,
        why: "atomics come from keyfence_mempool::sync, so that loom sees them",
        exceptions: &[Exception {
            path: "mempool/src/sync.rs",
            reason: "is that door",
        }],
    },
    Ban {
        name: "dyn",
        code: &["dyn"],
        folders: DATA_PATH,
        tests_too: false,
        why: "the poll step compiles to one loop; only the service boundary is dynamic",
        exceptions: &[Exception {
            path: "runtime/src/service.rs",
            reason: "is the service boundary",
        }],
    },
];

fn broken(ban: &Ban, sources: &[Source]) -> Vec<Finding> {
    let wanted: Vec<Vec<Token<'_>>> = ban.code.iter().map(|code| tokens(code)).collect();
    let mut findings = Vec::new();
    let concerned = |source: &&Source| source.is_rust() && source.is_in(ban.folders);
    for source in sources.iter().filter(concerned) {
        let tests = source.test_lines();
        let tokens = source.tokens();
        for at in 0..tokens.len() {
            let line = tokens[at].line;
            if tests[line] && !ban.tests_too {
                continue;
            }
            if let Some(index) = wanted
                .iter()
                .position(|wanted| starts_with(&tokens[at..], wanted))
            {
                let what = format!("`{}`: {}", ban.code[index], ban.why);
                findings.push(Finding::new(source, line, what));
            }
        }
        // A `use` tree can take a banned path apart.
        for path in super::paths::paths(source) {
            let pairs = path.segments.windows(2).map(|pair| pair.join("::"));
            let in_tree = |pair: &String| ban.code.contains(&pair.as_str());
            let seen = findings
                .iter()
                .any(|f| f.path == source.path && f.line == path.line);
            if pairs.clone().any(|pair| in_tree(&pair))
                && !seen
                && (ban.tests_too || !tests[path.line])
            {
                let what = format!("`{}`: {}", path.segments.join("::"), ban.why);
                findings.push(Finding::new(source, path.line, what));
            }
        }
    }
    findings
}

fn starts_with(tokens: &[Token<'_>], wanted: &[Token<'_>]) -> bool {
    tokens.len() >= wanted.len() && tokens.iter().zip(wanted).all(|(a, b)| a.text == b.text)
}

#[test]
fn banned_code_is_nowhere() {
    let sources = workspace();
    let found = BANS
        .iter()
        .flat_map(|ban| except(broken(ban, &sources), ban.exceptions));
    assert_none(&found.collect::<Vec<_>>());
}

#[test]
fn each_ban_is_seen_in_each_folder() {
    for ban in BANS {
        for code in ban.code {
            let text = format!("fn f() {{ {code} }}");
            for folder in ban.folders {
                let library = Source::new(&format!("{folder}/x.rs"), &text);
                assert_eq!(
                    broken(ban, &[library]).len(),
                    1,
                    "{}: {code} in {folder}",
                    ban.name
                );
            }
            let test = Source::new(&format!("{}/tests/x.rs", ban.folders[0]), &text);
            assert_eq!(
                broken(ban, &[test]).len(),
                usize::from(ban.tests_too),
                "{}",
                ban.name
            );
            let elsewhere = Source::new("elsewhere/src/x.rs", &text);
            assert_eq!(broken(ban, &[elsewhere]), [], "{}", ban.name);
        }
    }
}

#[test]
fn bans_see_through_use_trees_and_not_into_comments() {
    let count = |name: &str, text: &str| {
        let ban = BANS
            .iter()
            .find(|ban| ban.name == name)
            .expect("a ban of this name");
        broken(ban, &[Source::new("runtime/src/engine/x.rs", text)]).len()
    };
    assert_eq!(
        count("other atomics", "use core::{fmt, sync::atomic::AtomicU8};"),
        1
    );
    assert_eq!(count("other atomics", "use std::sync::{Arc, atomic};"), 1);
    assert_eq!(count("sleeping", "use std::thread::{self, sleep};"), 1);
    assert_eq!(
        count("dyn", "// dyn\nconst DYN: &str = \"dyn\"; struct Dynamic;"),
        0
    );
    assert_eq!(
        count(
            "printing",
            "#[cfg(test)]\nmod tests { fn f() { println!() } }"
        ),
        0
    );
}
