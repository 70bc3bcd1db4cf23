//! Mapping memory: sizes, shortages, nodes.
#![cfg(not(loom))]

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use keyfence_mempool::numa::{NodeMismatch, Nodes};
use keyfence_mempool::{
    Arena, ArenaConfig, ArenaError, ArenaNote, PageKind, PageSize, Policy, Segment,
};

const MIB: usize = 1 << 20;
const HUGE_BYTES: usize = 2 * MIB;
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

fn plain(bytes: usize) -> ArenaConfig {
    ArenaConfig {
        page_size: PageSize::Base4KiB,
        transparent: false,
        hugepages: Policy::Off,
        lock: Policy::Off,
        ..ArenaConfig::new(bytes)
    }
}

/// More 2 MiB pages than this machine has memory for.
fn hopeless(hugepages: Policy) -> ArenaConfig {
    let kib: usize = fs::read_to_string("/proc/meminfo")
        .expect("meminfo")
        .lines()
        .find_map(|line| {
            line.strip_prefix("MemTotal:")?
                .trim()
                .strip_suffix("kB")?
                .trim()
                .parse()
                .ok()
        })
        .expect("MemTotal");
    ArenaConfig {
        hugepages,
        ..ArenaConfig::new(2 * kib * 1024)
    }
}

#[test]
fn b45_odd_sizes_are_rounded_up_to_pages() {
    for (bytes, mapped) in [(1, 4096), (43, 4096), (4096, 4096), (4097, 8192)] {
        let arena = Arena::map(&plain(bytes)).expect("maps");
        assert_eq!(
            (arena.bytes(), arena.page_kind()),
            (mapped, PageKind::Base4KiB)
        );
        assert_eq!((arena.locked_bytes(), arena.notes().len()), (0, 0));
        assert_eq!(arena.address() % 4096, 0);
        assert_eq!(Segment::map(bytes).expect("maps").bytes(), mapped);
    }
}

#[test]
fn b45_zero_and_impossible_sizes_are_named() {
    assert!(matches!(Arena::map(&plain(0)), Err(ArenaError::ZeroBytes)));
    assert!(matches!(Segment::map(0), Err(ArenaError::ZeroBytes)));
    for bytes in [usize::MAX, usize::MAX / 2 + 1] {
        for policy in [Policy::Off, Policy::Prefer] {
            let config = ArenaConfig {
                hugepages: policy,
                ..ArenaConfig::new(bytes)
            };
            let error = Arena::map(&config).expect_err("exceeds the address space");
            assert!(matches!(error, ArenaError::TooLarge { .. }), "{error}");
        }
        assert!(matches!(
            Segment::map(bytes),
            Err(ArenaError::TooLarge { .. })
        ));
    }
    let contradiction = ArenaConfig {
        hugepages: Policy::Require,
        ..plain(1)
    };
    assert!(matches!(
        Arena::map(&contradiction),
        Err(ArenaError::RequireNeedsHugepages)
    ));
}

#[test]
fn an_arena_begins_zeroed_and_holds_what_is_written() {
    let arena = Arena::map(&plain(3 * 4096)).expect("maps");
    let all = arena.dma(0, arena.bytes()).expect("in bounds");
    assert_eq!(all.first_not(0), None);
    all.fill(0xa5);
    assert_eq!(all.first_not(0xa5), None);
    assert!(arena.dma(1, arena.bytes()).is_err());
    assert!(arena.dma(arena.bytes(), 0).is_ok());
    assert!(arena.dma(usize::MAX, 2).is_err());
}

#[test]
fn plain_pages_short_of_memory_are_an_error_with_the_numbers() {
    let config = ArenaConfig {
        bytes: hopeless(Policy::Off).bytes,
        ..plain(1)
    };
    match Arena::map(&config).expect_err("twice the machine's memory") {
        ArenaError::MemoryShort {
            wanted_bytes,
            available_bytes,
        } => {
            assert_eq!(wanted_bytes, config.bytes as u64);
            assert!(available_bytes < wanted_bytes);
        }
        other => panic!("{other}"),
    }
}

#[test]
fn b12_more_hugepages_than_free_is_an_error_with_the_numbers() {
    let config = hopeless(Policy::Require);
    let error = Arena::map(&config).expect_err("twice the machine's memory");
    let text = error.to_string();
    match error {
        ArenaError::HugepagesShort {
            page: PageSize::Huge2MiB,
            node: None,
            wanted,
            free,
        } => {
            assert_eq!(wanted, config.bytes.div_ceil(HUGE_BYTES) as u64);
            assert!(free < wanted);
            let missing = wanted - free;
            for part in [
                wanted.to_string(),
                free.to_string(),
                format!("reserve {missing} more"),
                POOL.to_owned(),
            ] {
                assert!(text.contains(&part), "{part} is missing in: {text}");
            }
        }
        // A kernel without a pool of 2 MiB pages says that instead.
        ArenaError::HugepagesUnsupported { .. } => assert!(!Path::new(POOL).exists()),
        other => panic!("{other}"),
    }
}

#[test]
fn b12_prefer_falls_back_and_says_why() {
    // Small enough to be had in plain pages, and no machine has reserved 1 GiB pages by chance for this.
    let config = ArenaConfig {
        page_size: PageSize::Huge1GiB,
        transparent: false,
        lock: Policy::Off,
        ..ArenaConfig::new(MIB)
    };
    let arena = Arena::map(&config).expect("falls back");
    let tried = match arena.page_kind() {
        PageKind::Huge1GiB => 0,
        PageKind::Huge2MiB => 1,
        PageKind::Base4KiB => 2,
        PageKind::Transparent => panic!("transparent pages were not wanted"),
    };
    assert_eq!(arena.notes().len(), tried);
    for (note, size) in arena
        .notes()
        .iter()
        .zip([PageSize::Huge1GiB, PageSize::Huge2MiB])
    {
        assert!(
            matches!(note, ArenaNote::NoHugepages { wanted, .. } if *wanted == size),
            "{note}"
        );
        assert!(
            note.to_string()
                .contains(&format!("hugepages of {size} not used")),
            "{note}"
        );
    }
    assert_eq!(
        arena.dma(0, arena.bytes()).expect("in bounds").first_not(0),
        None
    );
}

/// Sets the number of 2 MiB pages for the length of a test. Whoever else does so waits.
struct Hugepages {
    _lock: File,
    before: u64,
}

impl Hugepages {
    /// `None` if this user may not, or the kernel finds no such pages.
    fn add(pages: u64) -> Option<Hugepages> {
        let file = format!("{POOL}/nr_hugepages");
        let lock = File::options().write(true).open(&file).ok()?;
        lock.lock().expect("flock");
        let before = read_number(&file);
        fs::write(&file, (before + pages).to_string()).expect("a writable file");
        let guard = Hugepages {
            _lock: lock,
            before,
        };
        (read_number(&file) == before + pages).then_some(guard)
    }
}

impl Drop for Hugepages {
    fn drop(&mut self) {
        let _ = fs::write(format!("{POOL}/nr_hugepages"), self.before.to_string());
    }
}

fn read_number(path: &str) -> u64 {
    fs::read_to_string(path)
        .expect("readable")
        .trim()
        .parse()
        .expect("a number")
}

#[test]
fn b12_hugepages_that_are_free_are_used_and_given_back() {
    const ADDED: usize = 16;
    let may_reserve = Hugepages::add(ADDED as u64);
    if may_reserve.is_some() {
        let config = ArenaConfig {
            hugepages: Policy::Require,
            ..ArenaConfig::new(3 * HUGE_BYTES - 1)
        };
        // More rounds than pages: each must have given its own back. Others on this machine may have taken some.
        for _ in 0..4 * ADDED {
            let arena = Arena::map(&config).expect("pages were added");
            assert_eq!(
                (arena.page_kind(), arena.bytes()),
                (PageKind::Huge2MiB, 3 * HUGE_BYTES)
            );
            assert_eq!(
                arena.locked_bytes(),
                arena.bytes(),
                "hugepages are never swapped"
            );
            let all = arena.dma(0, arena.bytes()).expect("in bounds");
            assert_eq!(all.first_not(0), None);
            all.slice(all.len() - 1, 1).expect("in bounds").fill(1);
        }
    }
    // With or without pages of one's own, preferring them gives memory.
    let config = ArenaConfig {
        hugepages: Policy::Prefer,
        ..ArenaConfig::new(MIB)
    };
    let arena = Arena::map(&config).expect("maps");
    assert!(arena.bytes() >= MIB);
}

#[test]
fn transparent_hugepages_are_read_back_and_not_assumed() {
    let config = ArenaConfig {
        transparent: true,
        ..plain(8 * MIB)
    };
    let arena = Arena::map(&config).expect("maps");
    let switch =
        fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    match arena.page_kind() {
        PageKind::Transparent => assert!(!switch.contains("[never]"), "{switch}"),
        PageKind::Base4KiB => {
            assert!(matches!(
                arena.notes(),
                [ArenaNote::NotAllTransparent { huge_bytes: 0, .. }]
            ));
        }
        other => panic!("{other}"),
    }
    assert_eq!(arena.address() % HUGE_BYTES as u64, 0);
}

fn two_nodes() -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().expect("a folder");
    let nodes = root.path().join("devices/system/node");
    for (node, cpus) in [(0, "0,2"), (1, "1,3-4")] {
        let folder = nodes.join(format!("node{node}"));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("cpulist"), format!("{cpus}\n")).expect("a file");
    }
    fs::write(nodes.join("online"), "0-1\n").expect("a file");
    let path = root.path().to_owned();
    (root, path)
}

#[test]
fn b35_a_missing_node_is_named() {
    let sysfs = Path::new("/sys");
    let online = Nodes::new(sysfs).online();
    let missing = (0..1024)
        .find(|node| Nodes::new(sysfs).check(*node).is_err())
        .expect("not all 1024 exist");
    let error = Arena::map(&ArenaConfig {
        numa_node: Some(missing),
        ..plain(1)
    })
    .expect_err("no such node");
    let text = error.to_string();
    assert!(
        matches!(error, ArenaError::NoSuchNode { node, .. } if node == missing),
        "{text}"
    );
    assert!(
        text.contains(&missing.to_string()) && text.contains(&online),
        "{text}"
    );
    // On a node that exists, memory is had.
    if let Some(node) = (0..1024).find(|node| Nodes::new(sysfs).check(*node).is_ok()) {
        let arena = Arena::map(&ArenaConfig {
            numa_node: Some(node),
            ..plain(4096)
        })
        .expect("binds");
        assert_eq!(arena.dma(0, 4096).expect("in bounds").first_not(0), None);
    }
}

#[test]
fn b35_a_mismatch_is_found_on_a_fake_two_node_tree() {
    let (_root, sysfs) = two_nodes();
    let nodes = Nodes::new(&sysfs);
    assert_eq!(
        [0, 1, 2, 3, 4, 5].map(|cpu| nodes.of_cpu(cpu)),
        [Some(0), Some(1), Some(0), Some(1), Some(1), None]
    );
    assert_eq!(nodes.check_cpu(2, 0), Ok(()));
    let mismatch = nodes.check_cpu(3, 0).expect_err("CPU 3 is on node 1");
    assert_eq!(
        mismatch,
        NodeMismatch {
            cpu: 3,
            cpu_node: 1,
            memory_node: 0
        }
    );
    let text = mismatch.to_string();
    assert!(
        text.contains("CPU 3 is on NUMA node 1") && text.contains("memory on node 0"),
        "{text}"
    );
    assert!(
        matches!(nodes.check(2), Err(ArenaError::NoSuchNode { node: 2, online }) if online == "0-1")
    );
}

#[test]
fn b35_a_node_that_only_the_tree_has_is_refused_by_name() {
    let (_root, sysfs) = two_nodes();
    let answer = Arena::map(&ArenaConfig {
        numa_node: Some(1),
        sysfs,
        ..plain(4096)
    });
    if Nodes::new(Path::new("/sys")).check(1).is_ok() {
        assert!(answer.is_ok(), "this machine has a node 1");
    } else {
        assert!(
            matches!(
                answer,
                Err(ArenaError::BindRefused {
                    node: 1,
                    bytes: 4096,
                    ..
                })
            ),
            "{answer:?}"
        );
    }
}
