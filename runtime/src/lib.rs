//! keyfence: a poll-mode runtime for RDMA.

pub mod config;
pub mod ids;
pub mod limits;
pub mod plant;
pub mod reclaim;
pub mod wire;
