//! Checks, and kinds of faults, that exist, and that nothing can meet before what they wait for is built. Printed and counted; a kind in this list need not strike.

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct HeldBack {
    pub name: &'static str,
    /// What it waits for.
    pub waits_for: &'static str,
}

/// The list. Empty: what a seed may do, each seed is judged by.
pub const HELD_BACK: [HeldBack; 0] = [];

/// Whether a kind or check is in the list.
pub fn is_held_back(name: &str) -> bool {
    HELD_BACK.iter().any(|held| held.name == name)
}
