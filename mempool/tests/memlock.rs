//! Locking memory under a limit, in a child process that has one.
#![cfg(not(loom))]

use std::process::Command;
use std::{env, fs};

use keyfence_mempool::{Arena, ArenaConfig, ArenaError, ArenaNote, PageSize, Policy};

const NAME: &str = "b25_a_memlock_limit_is_named_with_need_and_remedy";
const ROLE: &str = "KEYFENCE_B25_LIMITED";
const DONE: &str = "the limited child has seen the error";
const LIMIT_BYTES: u64 = 65_536;
const CAP_IPC_LOCK: u64 = 1 << 14;

fn config(lock: Policy) -> ArenaConfig {
    ArenaConfig {
        page_size: PageSize::Base4KiB,
        transparent: false,
        lock,
        ..ArenaConfig::new(1 << 20)
    }
}

#[test]
fn b25_a_memlock_limit_is_named_with_need_and_remedy() {
    if env::var_os(ROLE).is_some() {
        in_the_limited_child();
        println!("{DONE}");
        return;
    }
    let this = env::current_exe().expect("the test's own path");
    let test = [
        this.to_str().expect("UTF-8"),
        "--exact",
        NAME,
        "--nocapture",
    ];
    let mut limited = Command::new("prlimit");
    limited
        .arg(format!("--memlock={LIMIT_BYTES}:{LIMIT_BYTES}"))
        .env(ROLE, "1");
    if may_ignore_limits() {
        // Whoever has the capability needs capsh to be rid of it; prlimit is in util-linux, capsh in libcap2-bin.
        limited
            .args(["capsh", "--drop=cap_ipc_lock", "--", "-c"])
            .arg(test.map(|word| format!("'{word}'")).join(" "));
    } else {
        limited.args(test);
    }
    let output = limited
        .output()
        .expect("prlimit (util-linux) and, as root, capsh (libcap2-bin) must be installed");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains(DONE),
        "as root this takes capsh (libcap2-bin); {}: {text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

fn in_the_limited_child() {
    let error = Arena::map(&config(Policy::Require)).expect_err("1 MiB is over the limit");
    let text = error.to_string();
    match error {
        ArenaError::LockRefused {
            wanted_bytes,
            limit_bytes,
            ..
        } => {
            assert_eq!((wanted_bytes, limit_bytes), (1 << 20, Some(LIMIT_BYTES)));
        }
        other => panic!("{other}"),
    }
    for part in [
        "RLIMIT_MEMLOCK is 65536 bytes",
        "1048576",
        "ulimit -l",
        "CAP_IPC_LOCK",
        "lock = \"prefer\"",
    ] {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
    let arena = Arena::map(&config(Policy::Prefer)).expect("works without a lock");
    assert_eq!(arena.locked_bytes(), 0);
    assert!(
        matches!(arena.notes(), [ArenaNote::NotLocked { .. }]),
        "{:?}",
        arena.notes()
    );
}

fn may_ignore_limits() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("procfs");
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .expect("CapEff");
    u64::from_str_radix(mask.trim(), 16).expect("a mask") & CAP_IPC_LOCK != 0
}

#[test]
fn a_lock_that_is_allowed_is_counted() {
    let arena = Arena::map(&ArenaConfig {
        bytes: 4096,
        ..config(Policy::Prefer)
    })
    .expect("maps");
    if arena.notes().is_empty() {
        assert_eq!(arena.locked_bytes(), arena.bytes());
    } else {
        assert_eq!(arena.locked_bytes(), 0);
    }
}
