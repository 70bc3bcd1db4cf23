//! keyfence: a poll-mode runtime for RDMA.

pub mod ids;
