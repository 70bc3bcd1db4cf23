//! What was said on a lane of its session's orderly end.

/// Both ends' `Bye`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Byes {
    /// Whether ours waits to be posted, or was.
    pub asked: bool,
    /// The number of the request that carries it, in the lane's flight list.
    pub said: Option<u64>,
    /// Whether the peer's has come.
    pub heard: bool,
}
