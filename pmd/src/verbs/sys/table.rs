//! Objects that a path looks up by index without a lock while control calls make and end them.
//!
//! Unsafe because a slot is a raw pointer. It is read only inside a step (see [`crate::quiesce`]), and what it pointed to is freed
//! only when every lcore has been outside since the slot was emptied.

use std::ptr;
use std::sync::Arc;

use keyfence_mempool::sync::{AtomicPtr, Ordering};

use crate::error::ControlError;
use crate::quiesce::{PathClock, wait_for};

/// The clocks of all lcores of one device.
#[derive(Debug)]
pub(crate) struct Clocks {
    clocks: Box<[PathClock]>,
}

/// The right to step one lcore's clock. There is one a lcore.
#[derive(Debug)]
pub(crate) struct ClockHandle {
    clocks: Arc<Clocks>,
    lcore: usize,
}

/// A step of a lcore: what it finds in a table stays until it ends.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    clocks: &'a Clocks,
    clock: &'a PathClock,
}

/// Objects by index.
#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Box<[AtomicPtr<T>]>,
    clocks: Arc<Clocks>,
}

/// An object that no path finds any more, and that some may still look at.
#[derive(Debug)]
pub(crate) struct Retired<T> {
    object: Option<Arc<T>>,
    clocks: Arc<Clocks>,
}

impl Clocks {
    /// Clocks of `lcores` lcores, and the right to step each.
    pub(crate) fn new(lcores: u16) -> (Arc<Self>, Vec<ClockHandle>) {
        let clocks = Arc::new(Self {
            clocks: (0..lcores).map(|_| PathClock::new()).collect(),
        });
        let handle = |lcore| ClockHandle {
            clocks: Arc::clone(&clocks),
            lcore: usize::from(lcore),
        };
        let handles = (0..lcores).map(handle).collect();
        (clocks, handles)
    }
}

impl ClockHandle {
    #[inline]
    pub(crate) fn enter(&mut self) -> Inside<'_> {
        let clock = &self.clocks.clocks[self.lcore];
        clock.enter();
        Inside {
            clocks: &self.clocks,
            clock,
        }
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.clock.leave();
    }
}

impl<T> Table<T> {
    pub(crate) fn new(slots: usize, clocks: &Arc<Clocks>) -> Self {
        Self {
            slots: (0..slots)
                .map(|_| AtomicPtr::new(ptr::null_mut()))
                .collect(),
            clocks: Arc::clone(clocks),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Lets the paths find an object from now on.
    pub(crate) fn publish(&self, index: usize, object: &Arc<T>) {
        let raw = Arc::into_raw(Arc::clone(object)).cast_mut();
        let before = self.slots[index].swap(raw, Ordering::AcqRel);
        assert!(before.is_null(), "a slot of a table is taken");
    }

    /// The object at an index, for the rest of the step.
    #[inline]
    pub(crate) fn get<'a>(&'a self, index: usize, inside: &'a Inside<'_>) -> Option<&'a T> {
        assert!(
            ptr::eq(&raw const *self.clocks, inside.clocks),
            "a step of another device"
        );
        let raw = self.slots.get(index)?.load(Ordering::Acquire);
        // SAFETY: null, or the pointer of an `Arc` that the slot held when this step had begun. `Retired::wait` frees that only after this
        // step has ended, and `inside` ends with it.
        unsafe { raw.as_ref() }
    }

    /// No step that begins from now on finds the object. `None` if the slot is empty.
    pub(crate) fn retire(&self, index: usize) -> Option<Retired<T>> {
        let raw = self.slots[index].swap(ptr::null_mut(), Ordering::AcqRel);
        if raw.is_null() {
            return None;
        }
        // SAFETY: `publish` made the pointer of an `Arc` and gave up its count, which only this swap takes over.
        let object = unsafe { Arc::from_raw(raw.cast_const()) };
        Some(Retired {
            object: Some(object),
            clocks: Arc::clone(&self.clocks),
        })
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        for index in 0..self.slots.len() {
            // Whoever looks into the table borrows it, so nobody does.
            if let Some(mut retired) = self.retire(index) {
                retired.object = None;
            }
        }
    }
}

impl<T> Retired<T> {
    /// Waits until no step looks at the object any more. It is given back if that takes too long.
    pub(crate) fn wait(mut self, timeout_ns: u64) -> Result<(), (Self, ControlError)> {
        match wait_for(self.clocks.clocks.iter(), timeout_ns) {
            Ok(()) => {
                self.object = None;
                Ok(())
            }
            Err(late) => Err((self, late)),
        }
    }
}

impl<T> Drop for Retired<T> {
    fn drop(&mut self) {
        // A step may still look at it: it is never freed then.
        std::mem::forget(self.object.take());
    }
}
