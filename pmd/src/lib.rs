//! The device contract and its poll-mode drivers.
