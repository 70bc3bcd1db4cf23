//! Benchmarks of keyfence.
