//! Any bytes as a frame.

#![no_main]

#[path = "../property.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = property::one_encoding_or_refused(bytes);
});
