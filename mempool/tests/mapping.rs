//! What the kernel says about the memory that was mapped. One test, alone in its process, so that no neighbour's
//! mapping is merged with the one looked at.
#![cfg(not(loom))]

use std::fs;

use keyfence_mempool::{Arena, ArenaConfig, PageSize, Policy, Segment};

const BYTES: usize = 1 << 20;

/// The value in KiB of `name`, and the flags, of the mapping that begins at `address`.
fn mapping(address: u64, name: &str) -> (usize, String) {
    let smaps = fs::read_to_string("/proc/self/smaps").expect("procfs");
    let mut lines = smaps
        .lines()
        .skip_while(|line| !line.starts_with(&format!("{address:x}-")));
    lines.next().expect("a mapping that begins there");
    let value = lines
        .find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"))
        .expect("the field");
    let flags = lines
        .find_map(|line| line.strip_prefix("VmFlags:"))
        .expect("flags");
    (value.parse().expect("a number"), format!("{flags} "))
}

fn assert_populated_and_kept_to_this_process(address: u64) {
    let (rss_kib, flags) = mapping(address, "Rss:");
    assert_eq!(rss_kib, BYTES / 1024, "populated at start");
    assert!(
        flags.contains(" dc "),
        "R11: a forked child would get it: {flags}"
    );
    assert!(
        flags.contains(" dd "),
        "a core dump would contain it: {flags}"
    );
}

#[test]
fn r11_memory_is_populated_and_absent_from_forks_and_core_dumps() {
    let config = |lock| ArenaConfig {
        page_size: PageSize::Base4KiB,
        transparent: false,
        lock,
        ..ArenaConfig::new(BYTES)
    };
    let arena = Arena::map(&config(Policy::Off)).expect("maps");
    assert_populated_and_kept_to_this_process(arena.address());
    drop(arena);
    let segment = Segment::map(BYTES).expect("maps");
    assert_populated_and_kept_to_this_process(segment.address());
    drop(segment);
    let arena = Arena::map(&config(Policy::Prefer)).expect("maps");
    assert_eq!(
        mapping(arena.address(), "Locked:").0 * 1024,
        arena.locked_bytes()
    );
}
