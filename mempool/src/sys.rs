//! The kernel's memory calls.
//!
//! Unsafe because `mmap` and its kin are foreign functions, and because [`Mapping`] owns memory by address.
//! Everything above this file deals in `Mapping`s only.

use core::ptr::{self, NonNull};
use std::alloc::Layout;
use std::io;

/// Bytes of a plain page on every target that keyfence supports.
pub(crate) const BASE_PAGE_BYTES: usize = 4096;
const NODE_MASK_WORDS: usize = 16;

/// Owned, page-aligned, readable and writable memory; unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// In a forked child the range is a hole, or something the child mapped since: it must not be unmapped there.
    owner_pid: u32,
}

// SAFETY: a mapping belongs to the process, not to a thread; nothing in here depends on who calls.
unsafe impl Send for Mapping {}
// SAFETY: a shared `Mapping` only gives out its address and size and makes system calls on the whole range.
// Access to the bytes goes through `DmaSlice` and `MappedWords`, which use atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Private zeroed memory in plain pages. `bytes` is a multiple of the page; `align` a power of two.
    pub(crate) fn private_pages(bytes: usize, align: usize) -> io::Result<Mapping> {
        if align <= BASE_PAGE_BYTES {
            return Mapping::map(bytes, libc::MAP_PRIVATE);
        }
        let wide_bytes = bytes
            .checked_add(align)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let wide = Mapping::map(wide_bytes, libc::MAP_PRIVATE)?;
        Ok(wide.trim_to(bytes, align))
    }

    /// Zeroed memory whose stores every process that holds the mapping sees.
    pub(crate) fn shared_pages(bytes: usize) -> io::Result<Mapping> {
        Mapping::map(bytes, libc::MAP_SHARED)
    }

    /// Private zeroed hugepages of the kernel's default size. Reserves them, so that a shortage fails here.
    pub(crate) fn default_hugepages(bytes: usize) -> io::Result<Mapping> {
        let layout = Layout::from_size_align(bytes, BASE_PAGE_BYTES)
            .map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the layout is not empty (`bytes` is at least a page); the caller has found `Hugepagesize` in
        // /proc/meminfo, without which the crate panics.
        let start = unsafe { hugepage_rs::alloc(layout) };
        let start = NonNull::new(start).ok_or_else(io::Error::last_os_error)?;
        Ok(Mapping {
            start,
            bytes,
            owner_pid: std::process::id(),
        })
    }

    /// Private zeroed hugepages of `page_bytes`, a power of two. Reserves them like [`Mapping::default_hugepages`].
    pub(crate) fn sized_hugepages(bytes: usize, page_bytes: usize) -> io::Result<Mapping> {
        let size_code = (page_bytes.trailing_zeros() as libc::c_int) << libc::MAP_HUGE_SHIFT;
        Mapping::map(bytes, libc::MAP_PRIVATE | libc::MAP_HUGETLB | size_code)
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Backs every page now. A shortage is an error here and not a signal at the first touch.
    pub(crate) fn populate(&self) -> io::Result<()> {
        self.advise(libc::MADV_POPULATE_WRITE)
    }

    pub(crate) fn exclude_from_core_dumps(&self) -> io::Result<()> {
        self.advise(libc::MADV_DONTDUMP)
    }

    pub(crate) fn exclude_from_forks(&self) -> io::Result<()> {
        self.advise(libc::MADV_DONTFORK)
    }

    /// Asks for transparent hugepages, or for none, so that the page kind does not depend on the machine's default.
    pub(crate) fn use_transparent_hugepages(&self, wanted: bool) -> io::Result<()> {
        self.advise(if wanted {
            libc::MADV_HUGEPAGE
        } else {
            libc::MADV_NOHUGEPAGE
        })
    }

    pub(crate) fn lock(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping's own; locking changes no byte of it.
        check(unsafe { libc::mlock(self.start.as_ptr().cast(), self.bytes) })
    }

    /// Takes pages from `node` only. Must come before [`Mapping::populate`].
    pub(crate) fn bind_to_node(&self, node: u32) -> io::Result<()> {
        let mut mask = [0u64; NODE_MASK_WORDS];
        let word = mask
            .get_mut(node as usize / 64)
            .ok_or(io::ErrorKind::InvalidInput)?;
        *word = 1 << (node % 64);
        // The kernel reads one bit fewer than it is told.
        let bits = NODE_MASK_WORDS * 64 + 1;
        // SAFETY: the range is this mapping's own, and the mask outlives the call and has `bits - 1` bits.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.start.as_ptr(),
                self.bytes,
                libc::MPOL_BIND,
                mask.as_ptr(),
                bits,
                0,
            )
        };
        check(answer as libc::c_int)
    }

    fn map(bytes: usize, flags: libc::c_int) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                protection,
                flags | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Mapping {
            start,
            bytes,
            owner_pid: std::process::id(),
        })
    }

    /// Gives back what lies before and behind `bytes` bytes aligned to `align`.
    fn trim_to(self, bytes: usize, align: usize) -> Mapping {
        let head = self.start.as_ptr().align_offset(align);
        let tail = self.bytes - head - bytes;
        let wide = core::mem::ManuallyDrop::new(self);
        // SAFETY: `head` is smaller than `align`, and the wide mapping has `bytes + align` bytes.
        let start = unsafe { wide.start.add(head) };
        // SAFETY: `start + bytes` is at most one past the wide mapping's end.
        let end = unsafe { start.add(bytes) };
        for (address, len) in [(wide.start, head), (end, tail)] {
            if len > 0 {
                // SAFETY: both ends belong to the wide mapping, which no longer owns them, and hold nothing yet.
                let answer = unsafe { libc::munmap(address.as_ptr().cast(), len) };
                assert_eq!(answer, 0, "unmapping part of an own mapping cannot fail");
            }
        }
        Mapping {
            start,
            bytes,
            owner_pid: wide.owner_pid,
        }
    }

    fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the range is this mapping's own; none of the advices used here changes bytes that were written.
        check(unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, advice) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.owner_pid != std::process::id() {
            return;
        }
        // SAFETY: the range is this mapping's own and whoever borrowed from it is gone. hugepage-rs's `dealloc` is
        // this same call.
        let answer = unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(answer, 0, "unmapping an own mapping cannot fail");
    }
}

/// The soft `RLIMIT_MEMLOCK` in bytes; `None` if it is unlimited.
pub(crate) fn memlock_limit_bytes() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to a local of the right type.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    assert_eq!(answer, 0, "getrlimit of a known resource cannot fail");
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

fn check(answer: libc::c_int) -> io::Result<()> {
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_wide_mapping_is_trimmed_to_its_alignment() {
        let align = 2 << 20;
        let mapping = Mapping::private_pages(3 * BASE_PAGE_BYTES, align).expect("maps");
        assert_eq!(mapping.start().as_ptr() as usize % align, 0);
        assert_eq!(mapping.bytes(), 3 * BASE_PAGE_BYTES);
        mapping.populate().expect("populates");
    }

    #[test]
    fn r11_a_forked_child_unmaps_nothing() {
        let mapping = Mapping::private_pages(BASE_PAGE_BYTES, BASE_PAGE_BYTES).expect("maps");
        mapping.exclude_from_forks().expect("advises");
        let start = mapping.start().as_ptr();
        // SAFETY: the child below makes system calls and drops a value without heap memory, then exits at once.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork: {}", io::Error::last_os_error());
        if child == 0 {
            // What an engine of the child's own could have mapped at the address that the fork left empty.
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            // SAFETY: the range is a hole in the child, since the parent excluded it.
            unsafe {
                libc::mmap(
                    start.cast(),
                    BASE_PAGE_BYTES,
                    libc::PROT_WRITE,
                    flags,
                    -1,
                    0,
                )
            };
            drop(mapping);
            // SAFETY: mapped just above; a fault here is the failure that the parent looks for.
            unsafe { start.write_volatile(1) };
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: `child` is this process's child and `status` a local.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
            "child ended with {status:#x}"
        );
    }
}
