//! Checks, and kinds of faults, that exist, and that nothing can meet before what they wait for is built. Printed and counted; a kind in this list need not strike.

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct HeldBack {
    pub name: &'static str,
    /// What it waits for.
    pub waits_for: &'static str,
}

/// The list, which shrinks.
pub const HELD_BACK: [HeldBack; 2] = [
    HeldBack {
        name: MESSAGES_ACROSS_BREAKS,
        waits_for: "lanes that are always repaired: an engine of a seed may have none of it, and a session's end cuts messages off",
    },
    HeldBack {
        name: LANES_REPAIRED,
        waits_for: "lanes that are always repaired: it is off in some seeds, in key mode region, and beyond a lane's limit",
    },
];

/// The check that a message that has arrived is delivered, whatever breaks meanwhile.
pub const MESSAGES_ACROSS_BREAKS: &str = "messages_across_breaks";

/// The check that no session is lost where each engine was stepped and none started again.
pub const LANES_REPAIRED: &str = "lanes_repaired";

/// Whether a kind or check is in the list.
pub fn is_held_back(name: &str) -> bool {
    HELD_BACK.iter().any(|held| held.name == name)
}
