//! What the suite is given.

use keyfence_mempool::arena::Arena;
use keyfence_mempool::sync::Arc;

/// What the suite is given for each test: two devices that nothing was made on, and that can reach each other.
pub struct Setup<D> {
    /// The side that mostly asks.
    pub a: D,
    /// The side that mostly listens and opens its memory.
    pub b: D,
    /// Memory of `a`, at least [`ARENA_BYTES`].
    pub arena_a: Arc<Arena>,
    /// Memory of `b`, at least [`ARENA_BYTES`].
    pub arena_b: Arc<Arena>,
    /// An address on which `b` can listen and that `a` can connect to.
    pub address: String,
    /// Polls of both sides after which something that must come counts as never coming.
    pub poll_limit: u32,
    /// Polls of both sides in which something that must not come would have come.
    pub settle_polls: u32,
    /// Called once a poll of both sides; a device with a clock of its own needs a pause here.
    pub pause: fn(),
}

impl<D> Setup<D> {
    /// The same setup with each device decorated.
    #[must_use]
    pub fn map<E>(self, mut decorate: impl FnMut(D) -> E) -> Setup<E> {
        Setup {
            a: decorate(self.a),
            b: decorate(self.b),
            arena_a: self.arena_a,
            arena_b: self.arena_b,
            address: self.address,
            poll_limit: self.poll_limit,
            settle_polls: self.settle_polls,
            pause: self.pause,
        }
    }
}

/// The bytes that each arena must have.
pub const ARENA_BYTES: usize = 4 << 20;
