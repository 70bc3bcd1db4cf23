//! The keyfence launcher.

fn main() {}
