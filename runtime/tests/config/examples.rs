//! B13: each key of each example file, misspelt, in the wrong table, with a value of the wrong type. The cases are made from the files
//! themselves, so a new key or file is covered as it comes.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use keyfence::config::{Config, ConfigError};
use keyfence::limits::Limits;
use toml::de::{DeTable, DeValue};

use super::{errors_of, parse, place_of, read};

struct Example {
    name: String,
    source: String,
}

fn examples() -> Vec<Example> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../configs");
    let files = fs::read_dir(&folder)
        .expect("configs is there")
        .map(|entry| entry.expect("readable").path());
    let examples: Vec<Example> = files
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .map(|path| Example {
            name: path.display().to_string(),
            source: fs::read_to_string(&path).expect("readable"),
        })
        .collect();
    assert!(
        examples.len() >= 2,
        "the examples are in {}",
        folder.display()
    );
    // What no file of the folder has: each kind of address, and secrets for them.
    let secrets = Example {
        name: "peers with secrets".to_owned(),
        source: SECRETS.to_owned(),
    };
    examples.into_iter().chain([secrets]).collect()
}

/// Peers of each kind of address, with all their keys.
const SECRETS: &str = r#"
[memory]
bytes = "256MiB"

[[engine]]
name = "left"
lcores = [0]
listen = "rdma:10.9.9.2:4791"

[[engine]]
name = "right"
lcores = [1]

[[peer]]
name = "right"
engine = "left"
address = "local:right"
lcores = 1
secret_file = "right.secret"

[[peer]]
name = "left"
engine = "right"
address = "local:left"
lcores = 1
secret_file = "right.secret"

[[peer]]
name = "near"
engine = "left"
address = "shm:near"
lcores = 2
secret_file = "near.secret"

[[peer]]
name = "far"
engine = "left"
address = "rdma:10.9.9.1:4791"
lcores = 2
secret_file = "far.secret"
"#;

/// A key of a file: its tables, its name, and where it and its value are.
struct Entry {
    path: Vec<String>,
    key: Range<usize>,
    value: Range<usize>,
    kind: &'static str,
}

fn entries(source: &str) -> Vec<Entry> {
    let root = DeTable::parse(source).expect("an example is TOML");
    let mut entries = Vec::new();
    walk(root.get_ref(), &[], &mut entries);
    assert!(entries.len() > 10, "an example has keys");
    entries
}

fn walk(table: &DeTable<'_>, path: &[String], entries: &mut Vec<Entry>) {
    for (name, item) in table {
        let mut path = path.to_vec();
        path.push(name.get_ref().to_string());
        let value = item.get_ref();
        let (key, span, kind) = (name.span(), item.span(), value.type_str());
        entries.push(Entry {
            path: path.clone(),
            key,
            value: span,
            kind,
        });
        match value {
            DeValue::Table(inner) => walk(inner, &path, entries),
            DeValue::Array(array) => {
                array
                    .iter()
                    .filter_map(|item| item.get_ref().as_table())
                    .for_each(|inner| walk(inner, &path, entries));
            }
            _ => {}
        }
    }
}

fn replaced(source: &str, range: &Range<usize>, text: &str) -> String {
    format!("{}{text}{}", &source[..range.start], &source[range.end..])
}

fn line_of(source: &str, offset: usize) -> usize {
    source[..offset].matches('\n').count() + 1
}

#[track_caller]
fn assert_refused(source: &str, line: usize, key: &str, what: &str) -> ConfigError {
    let errors = errors_of(source);
    let is_it =
        |error: &&ConfigError| error.line == line && error.key == key && error.what.contains(what);
    let found = errors.iter().find(is_it);
    found
        .unwrap_or_else(|| panic!("{source}\nwants {line}: {key}: {what}, has {errors:#?}"))
        .clone()
}

#[test]
fn the_examples_are_legal() {
    for Example { name, source } in examples() {
        assert!(parse(&source).is_ok(), "{name}: {:#?}", parse(&source));
    }
}

#[test]
fn b13_a_misspelt_key_is_refused_with_its_line_and_the_word_that_was_meant() {
    for Example { source, .. } in examples() {
        for entry in entries(&source) {
            let name = entry.path.last().expect("a path has a name");
            let misspelt = format!("{name}q");
            let broken = replaced(&source, &entry.key, &misspelt);
            let mut path = entry.path.clone();
            *path.last_mut().expect("a path has a name") = misspelt;
            let error = assert_refused(
                &broken,
                line_of(&source, entry.key.start),
                &path.join("."),
                "unknown key",
            );
            // `contextq` may have been `context` or `contexts`.
            let meant = error
                .what
                .split_once("did you mean ")
                .map(|(_, word)| word.trim_end_matches('?'));
            assert!(
                meant.is_some_and(|word| word.starts_with(name.as_str())),
                "{error}"
            );
            assert!(
                error.allowed.split(", ").any(|word| word == name),
                "{error}"
            );
        }
    }
}

#[test]
fn b13_a_value_of_the_wrong_type_is_refused_with_its_place() {
    const WRONG: [&str; 6] = [
        "1979-05-27",
        "true",
        "\"\\u0001\"",
        "-1",
        "[{ q = [] }]",
        "{ q = 1 }",
    ];
    for Example { source, .. } in examples() {
        for entry in entries(&source) {
            // A table's value is its header, which can't be replaced alone.
            let is_header = source[entry.value.clone()].starts_with("[[")
                || entry.kind == "table" && source[entry.value.clone()].starts_with('[');
            let same_type = (entry.kind == "boolean").then_some("true");
            for text in WRONG
                .into_iter()
                .filter(|text| !is_header && Some(*text) != same_type)
            {
                let errors = errors_of(&replaced(&source, &entry.value, text));
                let (line, path) = (line_of(&source, entry.value.start), entry.path.join("."));
                let is_it =
                    |error: &ConfigError| error.line == line && error.key.starts_with(&path);
                assert!(errors.iter().any(is_it), "{path} = {text}: {errors:#?}");
            }
        }
    }
}

#[test]
fn b13_a_key_in_the_wrong_table_is_refused_with_its_line() {
    let tables = Config::keys();
    for Example { source, .. } in examples() {
        let headers: Vec<&str> = source
            .lines()
            .filter(|line| line.starts_with('['))
            .collect();
        for entry in entries(&source) {
            let name = entry.path.last().expect("a path has a name");
            for header in &headers {
                let header = header.split('#').next().expect("a header").trim();
                let keys = &tables
                    .iter()
                    .find(|(table, _)| *table == header)
                    .expect("a known table")
                    .1;
                if keys.contains(&name.as_str()) {
                    continue;
                }
                let misplaced = source.replacen(header, &format!("{header}\n{name} = 1"), 1);
                let (line, _) = place_of(&misplaced, header);
                let key = format!("{}.{name}", header.trim_matches(['[', ']']));
                let error = assert_refused(&misplaced, line + 1, &key, "unknown key");
                assert!(error.what.contains("a key of "), "{error}");
            }
        }
    }
}

#[test]
fn the_smallest_example_has_the_smallest_limits() {
    let examples = examples();
    let smallest = examples
        .iter()
        .find(|example| example.name.ends_with("test_min.toml"))
        .expect("it is there");
    assert_eq!(read(&smallest.source).limits, Limits::TEST_MIN);
    let limits = entries(&smallest.source)
        .into_iter()
        .filter(|entry| entry.path[0] == "limits" && entry.kind != "table");
    let mut tried = 0;
    for entry in limits {
        let value = &smallest.source[entry.value.clone()];
        let Some(less) = (match value {
            "0" => None,
            "\"1MB\"" => Some("999999".to_owned()),
            "\"4KiB\"" => Some("4095".to_owned()),
            number => Some((number.parse::<u64>().expect("a number") - 1).to_string()),
        }) else {
            continue;
        };
        let error = errors_of(&replaced(&smallest.source, &entry.value, &less)).remove(0);
        assert_eq!(error.key, entry.path.join("."), "{error}");
        tried += 1;
    }
    assert_eq!(
        tried, 28,
        "all limits but trace_records have a least above 0"
    );
}

#[test]
fn the_loopback_example_keeps_its_promises() {
    let examples = examples();
    let loopback = examples
        .iter()
        .find(|example| example.name.ends_with("loopback.toml"))
        .expect("it is there");
    let config = read(&loopback.source);
    let arenas_bytes = config.memory.arena_bytes * config.engines.len() as u64;
    assert!(arenas_bytes <= 256 << 20);
    assert_eq!((config.lanes(0), config.lanes(1)), (2, 2));
    let load = config.load.expect("it has a load");
    assert!(load.contexts >= 64);
    assert!(load.minima.operations >= 1_000_000 && load.minima.reclaims >= 200);
    assert!(
        load.minima.kills_with_ops_in_flight_percent >= 90.0 && load.minima.share_percent >= 1.0
    );
    assert!(load.minima.revokes_with_write_in_flight >= 100 && load.minima.max_quarantined == 0);
}
