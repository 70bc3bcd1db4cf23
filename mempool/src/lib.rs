//! Memory for keyfence: arenas that are mapped once, pools of fixed-size buffers, rings.
//!
//! This crate knows no device, key or epoch. [`Arena`] is the memory, [`DmaSlice`] the way to its bytes, [`Pool`] and
//! [`Buf`] hand it out in pieces, [`ring`] carries messages between threads and between engines.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("keyfence needs a 64-bit Linux target");

pub mod arena;
pub mod buf;
pub mod cache;
mod canary;
mod depot;
#[allow(unsafe_code)] // Views bytes that a peer can write as atomics.
pub mod dma;
pub mod error;
pub mod layout;
pub mod numa;
mod pages;
pub mod pool;
mod procfs;
pub mod ring;
mod shared;
mod state;
pub mod sync;
#[allow(unsafe_code)] // Calls into the kernel.
mod sys;

pub use arena::{Arena, ArenaConfig, ArenaNote, PageKind, PageSize, Policy, Segment};
pub use buf::{Buf, BufId};
pub use cache::PoolCache;
pub use dma::DmaSlice;
pub use error::{ArenaError, AtomicError, LayoutError, RangeError};
pub use layout::Layout;
pub use pool::{Pool, PoolConfig};

/// Inner machines that the loom tests drive directly.
#[cfg(loom)]
#[doc(hidden)]
pub mod model {
    pub use crate::depot::IndexStack;
    pub use crate::state::{Outcome, StateWord};
}
