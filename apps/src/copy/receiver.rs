//! The service of a receiver: it opens its own buffers to its sender, reads out what lands in them, hands it to the writer and says so.

use std::collections::VecDeque;

use keyfence::ids::{GrantId, PeerId, RemoteContext};
use keyfence::pmd::wrap::check::Ledger;
use keyfence::{Buf, Context, Event, GrantError, Lease, Rights, Service, Work};
use keyfence_mempool::sync::{Arc, Ordering};

use super::board::{Board, Side};
use super::plan::Plan;
use super::seat::{Block, Chair, ReceiverSeat, give};
use super::sender::CHUNK_BYTES;

/// What memory holds while nobody has a right to write to it; anything else is a late byte.
const PATTERN: u8 = 0xa5;

/// One incarnation of a stream's receiver.
pub struct Receiver {
    stream: usize,
    number: u32,
    plan: Arc<Plan>,
    board: Arc<Board>,
    ledger: Arc<Ledger>,
    chair: Chair<ReceiverSeat>,
    seat: Option<ReceiverSeat>,
    sender_name: String,
    sender: Partner,
    lots: Vec<Lot>,
    /// Blocks that arrived, for the sender to hear of.
    news: VecDeque<u32>,
}

enum Partner {
    Unknown,
    Asked,
    Known(RemoteContext),
}

/// A buffer and what it is for.
struct Lot {
    buf: Buf,
    /// The grant, until it is proven ended, and to whom.
    grant: Option<(GrantId, RemoteContext)>,
    landed: Option<Landed>,
    /// Whether it was filled with the pattern since it was last open to anyone.
    blank: bool,
}

/// A block that is being read out.
struct Landed {
    number: u32,
    read: usize,
    into: Option<Block>,
}

impl Receiver {
    /// The receiver number `number` of a stream, counted from 1.
    pub fn new(
        stream: usize,
        number: u32,
        sender_name: String,
        plan: &Arc<Plan>,
        board: &Arc<Board>,
        ledger: Arc<Ledger>,
        chair: &Chair<ReceiverSeat>,
    ) -> Self {
        Self {
            stream,
            number,
            plan: Arc::clone(plan),
            board: Arc::clone(board),
            ledger,
            chair: chair.clone(),
            seat: None,
            sender_name,
            sender: Partner::Unknown,
            lots: Vec::with_capacity(plan.slots),
            news: VecDeque::with_capacity(plan.slots),
        }
    }

    /// Takes a buffer more, as far as there are any; the dead predecessor's come back with its reclaim. One a poll: each is looked at.
    fn equip(&mut self, cx: &mut Context<'_>) -> bool {
        if self.lots.len() == self.plan.slots {
            return false;
        }
        let Ok(buf) = cx.alloc(self.plan.block_bytes) else {
            return false;
        };
        self.inspect(&buf, true);
        self.lots.push(Lot {
            buf,
            grant: None,
            landed: None,
            blank: false,
        });
        true
    }

    /// R1, seen from below the runtime: what the device may still do to memory that is said to be safe. `whole` if no grant has used it here yet.
    fn inspect(&self, buf: &Buf, whole: bool) {
        let range = buf.address()..buf.address() + buf.capacity() as u64;
        let keys = self.ledger.live_keys(range.clone()) as u64;
        self.board.stale_keys.fetch_add(keys, Ordering::Relaxed);
        if whole {
            let open = self.ledger.open_work(range) as u64;
            self.board.open_wrs.fetch_add(open, Ordering::Relaxed);
        }
    }

    /// Finds the stream's living sender by its name.
    fn seek(&mut self, cx: &mut Context<'_>) -> bool {
        let unknown = matches!(self.sender, Partner::Unknown);
        // Refused until the session stands.
        if unknown && cx.lookup(PeerId(0), &self.sender_name, 0).is_ok() {
            self.sender = Partner::Asked;
        }
        unknown
    }

    /// Brings one buffer that is free a step nearer to the sender: filled with the pattern, and in a later poll compared and opened.
    fn open(&mut self, cx: &mut Context<'_>) -> bool {
        let free = |lot: &&mut Lot| lot.grant.is_none() && lot.landed.is_none();
        let known = matches!(self.sender, Partner::Known(_));
        let next = self
            .lots
            .iter_mut()
            .filter(free)
            .find(|lot| known || !lot.blank);
        let Some(lot) = next else {
            return false;
        };
        if !lot.blank {
            lot.buf.dma().fill(PATTERN);
            lot.blank = true;
            return true;
        }
        let Partner::Known(holder) = self.sender else {
            return false;
        };
        if let Some(first) = lot.buf.dma().first_not(PATTERN) {
            let late = (first..lot.buf.capacity()).filter(|&at| !is_pattern(&lot.buf, at));
            let late = late.count() as u64;
            self.board.late_bytes.fetch_add(late, Ordering::Relaxed);
            lot.blank = false;
            return true;
        }
        let range = 0..self.plan.block_bytes;
        match cx.grant(&lot.buf, range, Rights::WRITE, holder, Lease::Configured) {
            Ok(id) => {
                lot.grant = Some((id, holder));
                lot.blank = false;
                true
            }
            Err(GrantError::HolderGone | GrantError::NoSession) => {
                self.forget_sender();
                true
            }
            // A limit, until what the dead had is back; or the end of this context.
            Err(_) => false,
        }
    }

    /// Reads out one chunk of the first block that has landed.
    fn read_out(&mut self) -> bool {
        let Some(seat) = &mut self.seat else {
            return false;
        };
        let landed = |lot: &Lot| lot.landed.is_some();
        let Some(at) = self.lots.iter().position(landed) else {
            return false;
        };
        let lot = &mut self.lots[at];
        let Some(landed) = &mut lot.landed else {
            return false;
        };
        if landed.into.is_none() {
            landed.into = seat.spare.pop().or_else(|| seat.free.pop());
        }
        // None while the writer is behind.
        let Some(block) = &mut landed.into else {
            return false;
        };
        let len = self.plan.len(landed.number);
        let end = (landed.read + CHUNK_BYTES).min(len);
        lot.buf
            .read_at(landed.read, &mut block.bytes[landed.read..end])
            .expect("a block fits its buffer");
        landed.read = end;
        if end == len {
            self.arrived(at);
        }
        true
    }

    fn arrived(&mut self, at: usize) {
        let lot = &mut self.lots[at];
        let (Some(landed), Some(seat)) = (lot.landed.take(), &mut self.seat) else {
            return;
        };
        let Landed { number, into, .. } = landed;
        if let Some(mut block) = into {
            block.number = number;
            block.len = self.plan.len(number);
            // A dead sender's block may have been sent by its successor too.
            if self.board.arrive(self.stream, number) {
                give(&mut seat.out, block);
            } else {
                seat.spare.push(block);
            }
        }
        if let (Some((_, holder)), Partner::Known(sender)) = (lot.grant, &self.sender)
            && holder == *sender
        {
            self.news.push_back(number);
        }
    }

    /// Tells the sender what has arrived: its grants are free again.
    fn report(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while let (Partner::Known(sender), Some(number)) = (&self.sender, self.news.front()) {
            match cx.send(*sender, &number.to_le_bytes(), 0) {
                Ok(()) => {
                    self.news.pop_front();
                    any = true;
                }
                Err(why) if why.is_back_pressure() => return any,
                Err(_) => {
                    self.forget_sender();
                    return any;
                }
            }
        }
        any
    }

    /// The next sender finds on the board what has arrived, so it needs no news.
    fn forget_sender(&mut self) {
        self.sender = Partner::Unknown;
        self.news.clear();
    }

    fn landed(&mut self, grant: GrantId, number: u32, bytes: u64) {
        let of_grant = |lot: &&mut Lot| lot.grant.is_some_and(|(id, _)| id == grant);
        let Some(lot) = self.lots.iter_mut().find(of_grant) else {
            return;
        };
        let known = number < self.plan.blocks();
        if lot.landed.is_some() || !known || bytes != self.plan.len(number) as u64 {
            let why = format!("block {number} of {bytes} bytes landed out of turn");
            self.board.fail(why);
            return;
        }
        self.board.set_receiving(self.stream, true);
        lot.landed = Some(Landed {
            number,
            read: 0,
            into: None,
        });
    }

    /// A grant is over. Its holder was killed, or lost it: the stream's next sender gets the buffer.
    fn zapped(&mut self, grant: GrantId) {
        let of_grant = |lot: &Lot| lot.grant.is_some_and(|(id, _)| id == grant);
        let Some(at) = self.lots.iter().position(of_grant) else {
            return;
        };
        self.inspect(&self.lots[at].buf, false);
        let holder = self.lots[at].grant.take().map(|(_, holder)| holder);
        if let (Some(holder), Partner::Known(sender)) = (holder, &self.sender)
            && holder == *sender
        {
            self.forget_sender();
        }
    }
}

impl Service for Receiver {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        if self.seat.is_none() {
            // The predecessor gives it back in the step of its death.
            self.seat = self.chair.take();
        }
        let mut busy = self.equip(cx);
        busy |= self.seek(cx);
        busy |= self.open(cx);
        busy |= self.read_out();
        busy |= self.report(cx);
        if busy { Work::Busy } else { Work::Idle }
    }

    fn on_event(&mut self, _cx: &mut Context<'_>, event: Event) {
        match event {
            Event::Resolved { context, .. } => {
                self.sender = context.map_or(Partner::Unknown, Partner::Known);
            }
            Event::Landed {
                grant,
                immediate,
                bytes,
            } => self.landed(grant, immediate, bytes),
            Event::Zapped(grant) => self.zapped(grant),
            Event::GrantQuarantined(grant) => {
                // Its memory is not used again, here or by anyone.
                let of_grant = |lot: &Lot| lot.grant.is_some_and(|(id, _)| id == grant);
                self.lots.retain(|lot| !of_grant(lot));
            }
            Event::ContextGone { context: gone, .. } => {
                if matches!(&self.sender, Partner::Known(sender) if *sender == gone) {
                    self.forget_sender();
                }
            }
            _ => {}
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let seated = self.seat.is_some();
        self.board
            .died(self.stream, Side::Receiver, self.number, seated);
        let Some(mut seat) = self.seat.take() else {
            return;
        };
        let in_hand = self.lots.iter_mut().filter_map(|lot| lot.landed.take());
        seat.spare.extend(in_hand.filter_map(|landed| landed.into));
        self.chair.leave(seat);
    }
}

fn is_pattern(buf: &Buf, at: usize) -> bool {
    let mut byte = [0];
    buf.read_at(at, &mut byte).is_ok() && byte[0] == PATTERN
}
