//! Waiting for what the kernel's software adapters have begun.
//!
//! Unsafe because it calls the kernel.
//!
//! The bytes of a packet are copied in one go that does not sleep, by a soft interrupt, or by a thread of this host inside its own system call
//! that posted them. Two waits run side by side, both begun after the key's end:
//!
//! - A grace period of RCU (`membarrier`). Soft interrupts run with bottom halves disabled, which such a period waits for, on kernels with
//!   `PREEMPT_RT`, too.
//! - A round over all CPUs. Once a thread of ours has run on a CPU, what ran there before has ended or was preempted; a kernel that preempts
//!   only where it says so does not preempt a copy. This is for the system calls, which a preemptible RCU does not wait for. It is left out where a
//!   CPU is closed to this process.

use std::{fs, io, mem, thread};

const MEMBARRIER_CMD_QUERY: i32 = 0;
const MEMBARRIER_CMD_GLOBAL: i32 = 1;

/// Whether [`wait_for_accesses`] can work here. It cannot where ticks are stopped for some CPUs (`nohz_full`).
pub(crate) fn can_wait_for_accesses() -> bool {
    membarrier(MEMBARRIER_CMD_QUERY).is_ok_and(|commands| commands & MEMBARRIER_CMD_GLOBAL != 0)
}

/// Waits until each access that a software adapter has begun until now has ended: some ten milliseconds.
///
/// # Errors
/// Nothing is known then.
pub(crate) fn wait_for_accesses() -> io::Result<()> {
    thread::scope(|scope| {
        // A thread of its own: the caller stays where it is allowed to be.
        let round = thread::Builder::new().spawn_scoped(scope, visit_all_cpus);
        let waited = membarrier(MEMBARRIER_CMD_GLOBAL);
        if let Ok(round) = round {
            let _ = round.join();
        }
        waited.map(drop)
    })
}

fn membarrier(command: i32) -> io::Result<i32> {
    // SAFETY: no memory is concerned.
    let returned = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    match returned {
        0.. => Ok(returned as i32),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs the calling thread on each CPU that is online and open to it.
fn visit_all_cpus() {
    let online = fs::read_to_string("/sys/devices/system/cpu/online");
    for cpu in online
        .ok()
        .as_deref()
        .and_then(parse_list)
        .into_iter()
        .flatten()
    {
        visit(cpu);
    }
}

/// Runs the calling thread on one CPU. False if it may not.
fn visit(cpu: usize) -> bool {
    if cpu >= libc::CPU_SETSIZE as usize {
        return false;
    }
    // SAFETY: plain C data, for which zeros are valid.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: the set has a bit for this CPU.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is readable and of the length that is said.
    let moved = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    // The mask may lie; where the thread is does not.
    // SAFETY: takes nothing.
    let at = unsafe { libc::sched_getcpu() };
    moved == 0 && usize::try_from(at) == Ok(cpu)
}

/// The numbers of a list such as `0-3,8`.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(parse_list("0\n"), Some(vec![0]));
        assert_eq!(parse_list("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(parse_list(""), None);
        assert_eq!(parse_list("0-"), None);
    }

    #[test]
    fn a_round_visits_each_cpu_that_is_open_to_it() {
        // SAFETY: takes nothing.
        let here = unsafe { libc::sched_getcpu() } as usize;
        thread::spawn(move || assert!(visit(here))).join().unwrap();
        assert!(!visit(1 << 20));
        assert!(
            !visit(libc::CPU_SETSIZE as usize - 1),
            "1023 CPUs, and the set says so"
        );
    }

    #[test]
    fn a_round_leaves_the_caller_where_it_may_be() {
        if !can_wait_for_accesses() {
            eprintln!("NOT RUN: this kernel has no such membarrier");
            return;
        }
        let mask = || fs::read_to_string("/proc/thread-self/status").unwrap();
        let allowed = |status: String| {
            let line = |line: &&str| line.starts_with("Cpus_allowed:");
            status.lines().find(line).map(str::to_owned)
        };
        let before = allowed(mask());
        wait_for_accesses().unwrap();
        assert_eq!(allowed(mask()), before);
    }
}
