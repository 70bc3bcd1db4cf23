//! keyfence: a poll-mode runtime for RDMA.

pub mod config;
pub mod ids;
pub mod limits;
pub mod wire;
