//! Bounded single-producer single-consumer rings.
//!
//! [`spsc`] moves typed values between two threads of one process. [`words`] moves 64-byte slots through memory that
//! two parties map, with the sequence inside each slot; its code is generic over where the words are, and
//! [`mapped`] is the backing over a segment. [`doorbell`] tells a consumer of many rings which to look at.

pub mod doorbell;
#[cfg(not(loom))]
#[allow(unsafe_code)] // Turns an offset into an atomic, and prefetches.
pub mod mapped;
#[allow(unsafe_code)] // Slots are moved in and out of uninitialised cells.
pub mod spsc;
pub mod words;
