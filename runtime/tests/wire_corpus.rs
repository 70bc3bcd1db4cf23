//! Replays the fuzzer's corpus on stable Rust, and checks that it has something of everything.

#[path = "../fuzz/property.rs"]
mod property;

use std::fs;
use std::mem::{Discriminant, discriminant};
use std::path::Path;

use keyfence::wire::{DecodeError, Kind, NameError, decode};
use property::one_encoding_or_refused;

/// Each file of the corpus, by name. `ok-*` and `bad-*` are the seeds of `runtime/fuzz/seeds.rs`; what a fuzzer found has other names.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/wire_frame");
    let files = fs::read_dir(&folder).expect("the corpus is committed");
    files
        .map(|file| {
            let path = file.expect("the folder can be read").path();
            let name = path.file_name().expect("a file has a name");
            let bytes = fs::read(&path).expect("a file of the corpus can be read");
            (name.to_string_lossy().into_owned(), bytes)
        })
        .collect()
}

#[test]
fn r12_the_corpus_does_no_harm() {
    for (name, bytes) in corpus() {
        let outcome = one_encoding_or_refused(&bytes);
        if name.starts_with("ok-") {
            assert_eq!(outcome, Ok(()), "{name}");
        }
        if name.starts_with("bad-") {
            assert!(outcome.is_err(), "{name} was taken for a frame");
        }
    }
}

#[test]
fn the_corpus_has_each_kind_and_each_refusal() {
    let corpus = corpus();
    let outcomes: Vec<_> = corpus.iter().map(|(_, bytes)| decode(bytes)).collect();
    for kind in Kind::ALL {
        let there = |(_, frame): &(_, keyfence::wire::Frame<'_>)| frame.kind() == *kind;
        let found = outcomes.iter().flatten().any(there);
        assert!(found, "no frame of kind {kind:?} in the corpus");
    }
    let refusals: Vec<Discriminant<DecodeError>> = outcomes
        .iter()
        .filter_map(|outcome| outcome.as_ref().err().map(discriminant))
        .collect();
    for error in each_error() {
        assert!(
            refusals.contains(&discriminant(&error)),
            "no {error:?} in the corpus"
        );
    }
}

/// One value of each variant. A variant that is missing here fails to compile in `listed`.
fn each_error() -> [DecodeError; 12] {
    let errors = [
        DecodeError::TooShort { wanted: 0, got: 0 },
        DecodeError::BadLength { max: 0, got: 0 },
        DecodeError::TrailingBytes { extra: 0 },
        DecodeError::UnknownKind { kind: 0 },
        DecodeError::BadFlags {
            allowed: 0,
            flags: 0,
        },
        DecodeError::BadReserved,
        DecodeError::BadVersion { ours: 0, got: 0 },
        DecodeError::BadRole { role: 0 },
        DecodeError::BadRights { rights: 0 },
        DecodeError::BadRange { address: 0, len: 0 },
        DecodeError::BadName(NameError::Empty),
        DecodeError::ListTooLong { max: 0, got: 0 },
    ];
    for (index, error) in errors.iter().enumerate() {
        assert_eq!(listed(error), index);
    }
    errors
}

const fn listed(error: &DecodeError) -> usize {
    match error {
        DecodeError::TooShort { .. } => 0,
        DecodeError::BadLength { .. } => 1,
        DecodeError::TrailingBytes { .. } => 2,
        DecodeError::UnknownKind { .. } => 3,
        DecodeError::BadFlags { .. } => 4,
        DecodeError::BadReserved => 5,
        DecodeError::BadVersion { .. } => 6,
        DecodeError::BadRole { .. } => 7,
        DecodeError::BadRights { .. } => 8,
        DecodeError::BadRange { .. } => 9,
        DecodeError::BadName(_) => 10,
        DecodeError::ListTooLong { .. } => 11,
    }
}
