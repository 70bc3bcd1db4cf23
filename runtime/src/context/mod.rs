//! Contexts: what each one is, may use, and has under way.

pub mod offences;
pub mod ops;
pub mod quota;
pub mod state;
