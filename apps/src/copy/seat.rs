//! What a stream's contexts hand on when they die: the ends of the rings to the file's threads, and the work in hand.
//!
//! A service owns its seat while it lives and puts it back when it is dropped, which a kill causes before the reclaim looks for handles. The
//! blocks are ordinary memory: no buffer of an engine ever leaves its lcore, so none can keep a reclaim from its end.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use keyfence::ids::ContextId;
use keyfence_mempool::ring::spsc::{self, Consumer, Producer};
use keyfence_mempool::sync::Arc;

use super::plan::Plan;

/// A block of the file in ordinary memory.
pub struct Block {
    /// Which one.
    pub number: u32,
    /// Its bytes are the first of `bytes`.
    pub len: usize,
    /// As long as the longest block.
    pub bytes: Box<[u8]>,
}

/// A block that a sender has, and whether one before it has submitted it already.
pub struct Carried {
    /// The block.
    pub block: Block,
    /// Whether it was submitted before.
    pub sent: bool,
}

/// The place of a stream's sender.
pub struct SenderSeat {
    /// Blocks from the reader.
    pub inbox: Consumer<Block>,
    /// Blocks that have arrived, back to the reader.
    pub spent: Producer<Block>,
    /// Blocks to be sent before those of the inbox.
    pub pending: VecDeque<Carried>,
    /// Whose memory it was when an operation failed, each once in a row.
    pub failed_owners: Vec<ContextId>,
}

/// The place of a stream's receiver.
pub struct ReceiverSeat {
    /// Empty blocks from the writer.
    pub free: Consumer<Block>,
    /// Blocks to be written.
    pub out: Producer<Block>,
    /// Empty blocks that a receiver had in hand.
    pub spare: Vec<Block>,
}

/// The reader's ends of one stream.
pub struct ReaderEnds {
    /// Blocks to the sender.
    pub outbox: Producer<Block>,
    /// Blocks that have arrived.
    pub spent: Consumer<Block>,
}

/// The writer's ends of one stream.
pub struct WriterEnds {
    /// Blocks to be written.
    pub inbox: Consumer<Block>,
    /// Empty blocks to the receiver.
    pub free: Producer<Block>,
}

/// Holds a seat while nobody sits in it.
pub struct Chair<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for Chair<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Chair<T> {
    fn new(seat: T) -> Self {
        Self(Arc::new(Mutex::new(Some(seat))))
    }

    /// The seat, if nobody has it. Never waits, since services call it: if another looks at the chair at this moment, there is none.
    pub fn take(&self) -> Option<T> {
        self.0.try_lock().ok()?.take()
    }

    /// Gives the seat back.
    pub fn leave(&self, seat: T) {
        // Waits for nobody but a successor that looks, which is on the same lcore.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(seat);
    }
}

/// The chairs of one stream and the far ends of their rings.
pub struct Stream {
    /// The sender's place.
    pub sender: Chair<SenderSeat>,
    /// The receiver's place.
    pub receiver: Chair<ReceiverSeat>,
    /// The reader's ends.
    pub reader: ReaderEnds,
    /// The writer's ends.
    pub writer: WriterEnds,
}

impl Stream {
    /// A stream with all its blocks empty: two windows on each side, so that the file is read and written while blocks are in transfer.
    pub fn new(plan: &Plan) -> Self {
        let blocks = plan.slots * 2;
        let (outbox, inbox) = spsc::ring(blocks);
        let (mut to_reader, spent) = spsc::ring(blocks);
        let (mut to_receiver, free) = spsc::ring(blocks);
        let (out, from_receiver) = spsc::ring(blocks);
        for ring in [&mut to_reader, &mut to_receiver] {
            for _ in 0..blocks {
                give(ring, Block::empty(plan.block_bytes));
            }
        }
        Self {
            sender: Chair::new(SenderSeat {
                inbox,
                spent: to_reader,
                pending: VecDeque::with_capacity(blocks),
                failed_owners: Vec::new(),
            }),
            receiver: Chair::new(ReceiverSeat {
                free,
                out,
                spare: Vec::with_capacity(blocks),
            }),
            reader: ReaderEnds { outbox, spent },
            writer: WriterEnds {
                inbox: from_receiver,
                free: to_receiver,
            },
        }
    }
}

impl Block {
    fn empty(bytes: usize) -> Self {
        Self {
            number: 0,
            len: 0,
            bytes: vec![0; bytes].into_boxed_slice(),
        }
    }
}

/// Pushes into a ring that has room for every block there is.
pub fn give(ring: &mut Producer<Block>, block: Block) {
    assert!(
        ring.push(block).is_ok(),
        "a stream's rings have room for all its blocks"
    );
}
