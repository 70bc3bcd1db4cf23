//! Bytes through atomics: exactness at every alignment, bounds, atomics.
#![cfg(not(loom))]

use keyfence_mempool::{Arena, ArenaConfig, AtomicError, DmaSlice, PageSize, Policy, RangeError};
use proptest::prelude::*;

const GUARD: u8 = 0xee;

fn arena() -> Arena {
    Arena::map(&ArenaConfig {
        page_size: PageSize::Base4KiB,
        transparent: false,
        hugepages: Policy::Off,
        lock: Policy::Off,
        ..ArenaConfig::new(64 << 10)
    })
    .expect("maps")
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) & 0x7f)
        .collect()
}

fn snapshot(slice: DmaSlice<'_>) -> Vec<u8> {
    let mut all = vec![0; slice.len()];
    slice.read_into(&mut all).expect("equal lengths");
    all
}

/// Exactly `len` bytes at `offset` are `data`, and all others the guard.
fn assert_only(slice: DmaSlice<'_>, offset: usize, data: &[u8], what: &str) {
    let all = snapshot(slice);
    let mut expected = vec![GUARD; all.len()];
    expected[offset..offset + data.len()].copy_from_slice(data);
    assert!(all == expected, "{what}: {} bytes at {offset}", data.len());
}

#[test]
fn every_alignment_and_length_is_exact() {
    let arena = arena();
    let all = arena.dma(0, 192).expect("in bounds");
    let from = arena.dma(4096, 192).expect("in bounds");
    for (offset, len) in (0..16).flat_map(|offset| (0..150).map(move |len| (offset, len))) {
        let (part, data) = (all.slice(offset, len).expect("in bounds"), bytes(len, 1));
        all.fill(GUARD);
        part.write_from(&data).expect("equal lengths");
        assert_only(all, offset, &data, "write_from");
        assert_eq!(snapshot(part), data);
        assert_eq!(part.first_difference(&data), Ok(None));
        part.fill(7);
        assert_only(all, offset, &vec![7; len], "fill");
        assert_eq!(part.first_not(7), None);
        part.zero();
        assert_only(all, offset, &vec![0; len], "zero");
        for shift in 0..8 {
            let source = from.slice(shift, len).expect("in bounds");
            source.write_from(&data).expect("equal lengths");
            all.fill(GUARD);
            source
                .copy_to(all.slice(offset, 192 - offset).expect("in bounds"))
                .expect("there is room");
            assert_only(all, offset, &data, "copy_to");
        }
    }
}

#[test]
fn each_byte_is_found() {
    let arena = arena();
    for (offset, len) in [(0, 130), (3, 130), (7, 9), (5, 2)] {
        let part = arena.dma(offset, len).expect("in bounds");
        for at in 0..len {
            part.fill(7);
            part.slice(at, 1).expect("in bounds").fill(8);
            assert_eq!(part.first_not(7), Some(at), "{len} bytes at {offset}");
            assert_eq!(
                part.first_difference(&vec![7; len]),
                Ok(Some(at)),
                "{len} bytes at {offset}"
            );
        }
    }
}

#[test]
fn a_range_outside_is_refused_and_nothing_touched() {
    let arena = arena();
    let all = arena.dma(0, 64).expect("in bounds");
    all.fill(GUARD);
    let (mut long, error) = (
        [0x55; 65],
        RangeError {
            offset: 0,
            len: 65,
            limit: 64,
        },
    );
    assert_eq!(all.read_into(&mut long), Err(error));
    assert_eq!(long, [0x55; 65]);
    assert_eq!(all.write_from(&long), Err(error));
    assert_eq!(
        arena.dma(128, 65).expect("in bounds").copy_to(all),
        Err(error)
    );
    assert_eq!(all.first_difference(&long), Err(error));
    assert_eq!(all.first_not(GUARD), None);
    for (offset, len) in [
        (65, 0),
        (64, 1),
        (1, 64),
        (usize::MAX, 1),
        (1, usize::MAX),
        (usize::MAX, usize::MAX),
    ] {
        assert_eq!(
            all.slice(offset, len).map(|_| ()),
            Err(RangeError {
                offset,
                len,
                limit: 64
            })
        );
    }
    assert!(all.slice(64, 0).expect("empty at the end").is_empty());
}

#[test]
fn b43_misaligned_and_outside_atomics_are_refused() {
    let arena = arena();
    let size = 4096;
    let slice = arena.dma(4096, size).expect("in bounds");
    slice.fill(GUARD);
    for offset in [1, 4, size - 7, size, usize::MAX] {
        let answers = [
            slice.load_u64(offset).map(|_| ()),
            slice.store_u64(offset, 0),
            slice.fetch_add_u64(offset, 1).map(|_| ()),
            slice.compare_exchange_u64(offset, 0, 0).map(|_| ()),
        ];
        for answer in answers {
            match answer.expect_err("refused") {
                AtomicError::Misaligned {
                    offset: found,
                    address,
                } => {
                    assert_eq!(
                        (found, address),
                        (offset, arena.address() + 4096 + offset as u64)
                    );
                }
                AtomicError::Range(error) => assert_eq!(
                    error,
                    RangeError {
                        offset,
                        len: 8,
                        limit: size
                    }
                ),
            }
        }
    }
    assert!(matches!(
        slice.load_u64(4),
        Err(AtomicError::Misaligned { .. })
    ));
    assert!(matches!(
        slice.load_u64(size - 7),
        Err(AtomicError::Range(_))
    ));
    // It is the address that counts, not the offset in the slice.
    assert!(arena.dma(4, 12).expect("in bounds").load_u64(4).is_ok());
    assert_eq!(slice.first_not(GUARD), None);
}

#[test]
fn b43_two_threads_increments_sum_exactly() {
    let arena = arena();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let slice = arena.dma(64, 8).expect("in bounds");
                for _ in 0..1_000_000 {
                    slice.fetch_add_u64(0, 1).expect("aligned");
                }
            });
        }
    });
    assert_eq!(
        arena.dma(64, 8).expect("in bounds").load_u64(0),
        Ok(2_000_000)
    );
}

#[test]
fn compare_exchange_answers_with_what_was_there() {
    let arena = arena();
    let slice = arena.dma(0, 8).expect("in bounds");
    assert_eq!(slice.compare_exchange_u64(0, 0, 5), Ok(0));
    assert_eq!(slice.compare_exchange_u64(0, 0, 9), Ok(5));
    assert_eq!(slice.load_u64(0), Ok(5));
    assert_eq!(slice.store_u64(0, u64::MAX), Ok(()));
    assert_eq!(slice.fetch_add_u64(0, 2), Ok(u64::MAX));
    assert_eq!(slice.load_u64(0), Ok(1));
}

proptest! {
    #[test]
    fn copies_of_any_size_match_a_vec(
        steps in prop::collection::vec((0usize..8192, 0usize..5000, 0usize..8192, any::<u8>()), 1..20)
    ) {
        let arena = arena();
        let (low, high) = (arena.dma(0, 16_384).expect("in bounds"), arena.dma(16_384, 16_384).expect("in bounds"));
        let (mut low_model, mut high_model) = (vec![0; 16_384], vec![0; 16_384]);
        for (from, len, to, seed) in steps {
            let data = bytes(len, seed);
            low.slice(from, len).expect("in bounds").write_from(&data).expect("equal lengths");
            low_model[from..from + len].copy_from_slice(&data);
            let sink = high.slice(to, len).expect("in bounds");
            low.slice(from, len).expect("in bounds").copy_to(sink).expect("equal lengths");
            high_model[to..to + len].copy_from_slice(&data);
        }
        prop_assert_eq!(low.first_difference(&low_model), Ok(None));
        prop_assert_eq!(high.first_difference(&high_model), Ok(None));
    }
}
