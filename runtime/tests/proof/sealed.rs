//! A process that may neither allocate nor enter the kernel any more.
//!
//! Unsafe because a global allocator is, and because seccomp is installed by system calls.

use std::alloc::{GlobalAlloc, Layout, System};

use keyfence_mempool::sync::{AtomicBool, Ordering};

/// The exit code of a sealed process that called its allocator. `abort` would enter the kernel first, and look like that.
pub const ALLOCATED: i32 = 97;

struct Sealable;

static SEALED: AtomicBool = AtomicBool::new(false);

#[global_allocator]
static ALLOCATOR: Sealable = Sealable;

fn check() {
    if SEALED.load(Ordering::Relaxed) {
        exit(ALLOCATED);
    }
}

// SAFETY: every call goes to the system's allocator as it came, or does not return.
unsafe impl GlobalAlloc for Sealable {
    // SAFETY: the caller's promises are passed on.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check();
        // SAFETY: as promised to this function.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the caller's promises are passed on.
    unsafe fn realloc(&self, old: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        check();
        // SAFETY: as promised to this function.
        unsafe { System.realloc(old, layout, bytes) }
    }

    // SAFETY: the caller's promises are passed on.
    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        check();
        // SAFETY: as promised to this function.
        unsafe { System.dealloc(old, layout) }
    }
}

/// From now on a system call of this thread other than exit_group kills the process by SIGSYS, and a call of the allocator ends it.
pub fn seal() {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let is = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    let line = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        // The first word of what the filter sees is the call's number.
        line(load, 0, 0, 0),
        line(is, 0, 1, libc::SYS_exit_group as u32),
        line(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
        line(answer, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    SEALED.store(true, Ordering::Relaxed);
    // SAFETY: takes numbers alone.
    let given_up = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(given_up, 0);
    // SAFETY: the filter and its program outlive the call, which copies them.
    let filtered = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const filter,
        )
    };
    assert_eq!(filtered, 0);
}

/// Ends the process by the one call that is left.
pub fn exit(code: i32) -> ! {
    // SAFETY: takes a number alone; nothing of this process is used after it.
    unsafe { libc::_exit(code) }
}
