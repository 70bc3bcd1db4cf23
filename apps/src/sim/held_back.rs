//! Checks, and kinds of faults, that exist, and that nothing can meet before what they wait for is built. Printed and counted; a kind in this list need not strike.

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct HeldBack {
    pub name: &'static str,
    /// What it waits for.
    pub waits_for: &'static str,
}

/// The list, which shrinks.
pub const HELD_BACK: [HeldBack; 1] = [HeldBack {
    name: NOTHING_NAMELESS,
    waits_for: "sessions that end in order: a region whose registration came back late has no name, and is proven ended by its session's end alone",
}];

/// The check that nothing is in quarantine at the end, where the device has said of a registration that it does not know.
pub const NOTHING_NAMELESS: &str = "nothing_nameless";

/// Whether a kind or check is in the list.
pub fn is_held_back(name: &str) -> bool {
    HELD_BACK.iter().any(|held| held.name == name)
}
