//! keyfence: a poll-mode runtime for RDMA.
