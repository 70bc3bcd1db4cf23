//! The hellos of a lane, and what comes behind the peer's before the lane is admitted.

use core::fmt;
use std::collections::VecDeque;

use keyfence_mempool::buf::Buf;

use crate::wire::MAX_CONTROL_BYTES;

/// Room for the bytes of a hello. Made and dropped by the control side.
pub struct HelloBytes {
    len: usize,
    bytes: [u8; MAX_CONTROL_BYTES],
}

impl HelloBytes {
    /// Without a hello yet.
    pub fn new() -> Box<Self> {
        let bytes = [0; MAX_CONTROL_BYTES];
        Box::new(Self { len: 0, bytes })
    }

    /// A copy of `bytes`, as far as a hello can be long.
    pub fn fill(&mut self, bytes: &[u8]) {
        self.len = bytes.len().min(MAX_CONTROL_BYTES);
        self.bytes[..self.len].copy_from_slice(&bytes[..self.len]);
    }

    /// The hello.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Debug for HelloBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HelloBytes").field(&self.len).finish()
    }
}

/// The peer's hello.
#[derive(Debug)]
pub enum PeerHello {
    /// Has not come; there is room for it.
    Awaited(Box<HelloBytes>),
    /// Came, and is told to the control side as soon as ours has arrived: so a peer that is refused for its hello has ours to find out why.
    Came(Box<HelloBytes>),
    /// The control side has it.
    Told,
}

/// A frame that came behind the peer's hello while the lane was not admitted: the peer was quicker. Nobody has looked at it.
#[derive(Debug)]
pub struct HeldFrame {
    /// The slot of its receive.
    pub slot: u32,
    /// Its bytes.
    pub len: usize,
    /// Where they lie.
    pub buf: Buf,
}

/// What a lane has until it is up.
#[derive(Debug)]
pub struct Greeting {
    /// Our hello, once the connection stands.
    pub ours: Option<Box<HelloBytes>>,
    /// The peer's.
    pub theirs: PeerHello,
    /// In order; each in a receive of the lane, so there are not more than those.
    pub held: VecDeque<HeldFrame>,
}

impl Greeting {
    /// Of a lane with `receives` posted.
    pub fn new(receives: usize) -> Self {
        Self {
            ours: None,
            theirs: PeerHello::Awaited(HelloBytes::new()),
            held: VecDeque::with_capacity(receives),
        }
    }

    /// Takes the peer's hello, once.
    pub fn take_came(&mut self) -> Option<Box<HelloBytes>> {
        match core::mem::replace(&mut self.theirs, PeerHello::Told) {
            PeerHello::Came(hello) => Some(hello),
            other => {
                self.theirs = other;
                None
            }
        }
    }
}
