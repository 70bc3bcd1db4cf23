//! The one door for atomics, so that loom sees them.
//!
//! Every crate of keyfence takes its atomics, `Arc` and spin hint from here. Built with `--cfg loom` these are
//! loom's model types, which only work inside `loom::model`; otherwise they are the standard library's.
//!
//! [`mapped`] is the exception: memory that a device, another process or another mapping also sees cannot hold
//! loom's types (they differ in size), so it is always viewed through the hardware's own atomics.

#[cfg(not(loom))]
pub use core::hint::spin_loop;
#[cfg(not(loom))]
pub use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(not(loom))]
pub use std::sync::Arc;

#[cfg(loom)]
pub use loom::hint::spin_loop;
#[cfg(loom)]
pub use loom::sync::Arc;
#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// Atomics for bytes inside an arena or a segment. Only `dma.rs` and `ring/mapped.rs` have a use for them.
pub mod mapped {
    pub use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
}

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

/// `core::cell::UnsafeCell` with loom's interface: the pointer exists only inside a closure, so that loom can
/// tell when an access begins and ends.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
