//! Benchmarks of keyfence, one question a file, and the probe that their numbers are put in relation to.

pub mod probe;
