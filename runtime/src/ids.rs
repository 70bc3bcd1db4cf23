//! Names of the runtime's objects. A name is a slot and a generation: a stale one is found out, counted and never used.

use core::fmt;

/// The number of a polling thread of this engine, counted from 0.
pub use keyfence_pmd::LcoreId;

/// A start of an engine: 128 random bits, new each time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Incarnation(pub u128);

/// A configured peer of this engine, in the order of configuration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(pub u16);

/// A lane in the table of one lcore. Not a name on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LaneId(pub u16);

/// A logical client of an engine: its lcore, its slot there, and the slot's generation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ContextId {
    /// The lcore it lives on, for its whole life.
    pub lcore: LcoreId,
    /// Its slot in that lcore's table.
    pub slot: u16,
    /// How often the slot has been given out, from 1; a reclaimed context's name never comes back.
    pub generation: u32,
}

impl ContextId {
    /// The name as one word, for the wire and for traces.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        (self.lcore.0 as u64) << 48 | (self.slot as u64) << 32 | self.generation as u64
    }

    /// The name from one word. Any word is some name; whether it is a living one, its own engine knows, and others from what that one has told.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self {
            lcore: LcoreId((bits >> 48) as u16),
            slot: (bits >> 32) as u16,
            generation: bits as u32,
        }
    }
}

impl fmt::Display for ContextId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}#{}", self.lcore, self.slot, self.generation)
    }
}

/// A session with a peer, by this engine's own count: never repeated in the engine's life. The number that it agreed on with the peer for the
/// wire may come again when the peer starts anew; this one doesn't (R12: what was had of an ended session names nothing of a later one).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u64);

/// A context of a peer, as a look-up, a message or a grant named it. Good for one session with that peer, and for all contexts of the lcore that was
/// told it: another lcore sends to it only when it was told it too. A name that was never told is refused and changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteContext {
    /// The peer.
    pub peer: PeerId,
    /// The session in which it was looked up.
    pub session: SessionId,
    /// Its name at the peer.
    pub id: ContextId,
}

macro_rules! slot_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name {
            /// The slot in its lcore's table.
            pub slot: u32,
            /// The slot's generation.
            pub generation: u32,
        }

        impl $name {
            /// The name as one word.
            #[must_use]
            pub const fn to_bits(self) -> u64 {
                (self.slot as u64) << 32 | self.generation as u64
            }

            /// The name from one word.
            #[must_use]
            pub const fn from_bits(bits: u64) -> Self {
                Self { slot: (bits >> 32) as u32, generation: bits as u32 }
            }
        }
    };
}

slot_id! {
    /// A range of a context's memory, opened to one context of a peer. Belongs to the lcore of its owner.
    GrantId
}
slot_id! {
    /// A peer's grant, held by the context that it was made to. Belongs to the lcore of its holder.
    ImportId
}

/// The ticket of one retirement. Tickets of one lcore grow; epochs end in any order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Epoch(pub u64);
