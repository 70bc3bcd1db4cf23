//! Benchmarks of keyfence, one question a file, and what they share.
//!
//! On a virtual machine the host moves the cores about, and the same code is several times slower for a while. So every figure is put in
//! relation to the round trip of one cache line between two cores, the [`probe`], which is taken in between (A B probe A B probe ...): a
//! [`Suite`] reports medians and quartiles of the nanoseconds and of their ratio to the probe, and drops what was measured between two probes that
//! disagree. `cargo bench -p keyfence-benches -- --record` appends one line a figure to `benches/results/NAME.ndjson`.

mod cores;
mod figure;
pub mod probe;
mod suite;

pub use cores::{beside, until};
pub use figure::{Figure, Quartiles};
pub use suite::{Case, Plan, Suite, measure, repeated};

/// The programs of the guide to adapters compile. Here, since this crate may name a device and is a library.
#[cfg(all(doctest, feature = "verbs"))]
#[doc = include_str!("../../docs/rdma.md")]
struct Adapters;
