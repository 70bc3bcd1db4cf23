//! The service of a sender: it takes blocks from the reader into its own buffers and writes them into what its receiver grants.

use keyfence::pmd::wrap::check::Ledger;
use keyfence::{Buf, Context, Event, Import, Local, OpDone, Service, Status, SubmitError, Work};
use keyfence_mempool::sync::{Arc, Ordering};

use super::board::{Board, Side};
use super::plan::Plan;
use super::seat::{Carried, Chair, SenderSeat, give};

/// Bytes copied in one poll: what bounds the time of a step.
pub const CHUNK_BYTES: usize = 128 << 10;

/// One incarnation of a stream's sender.
pub struct Sender {
    stream: usize,
    number: u32,
    plan: Arc<Plan>,
    board: Arc<Board>,
    ledger: Arc<Ledger>,
    chair: Chair<SenderSeat>,
    seat: Option<SenderSeat>,
    slots: Vec<Slot>,
    /// Grants of the receiver that nothing is written to.
    open: Vec<Import>,
}

/// A buffer and what it is for.
struct Slot {
    buf: Buf,
    load: Load,
}

enum Load {
    Empty,
    /// The block's first `filled` bytes are in the buffer.
    Filling {
        carried: Carried,
        filled: usize,
    },
    /// The write is submitted. A slot is free when it has completed *and* the receiver has said that the block arrived.
    Transfer(Transfer),
}

struct Transfer {
    carried: Carried,
    import: Import,
    /// The write has not completed: the buffer is still being read.
    in_flight: bool,
    /// The receiver has read it out.
    arrived: bool,
    /// The grant is gone.
    lost: bool,
}

impl Sender {
    /// The sender number `number` of a stream, counted from 1.
    pub fn new(
        stream: usize,
        number: u32,
        plan: &Arc<Plan>,
        board: &Arc<Board>,
        ledger: Arc<Ledger>,
        chair: &Chair<SenderSeat>,
    ) -> Self {
        Self {
            stream,
            number,
            plan: Arc::clone(plan),
            board: Arc::clone(board),
            ledger,
            chair: chair.clone(),
            seat: None,
            slots: Vec::with_capacity(plan.slots),
            open: Vec::with_capacity(plan.slots * 2),
        }
    }

    /// Takes buffers as far as there are any; the dead predecessor's come back with its reclaim.
    fn equip(&mut self, cx: &mut Context<'_>) -> bool {
        let before = self.slots.len();
        while self.slots.len() < self.plan.slots {
            let Ok(buf) = cx.alloc(self.plan.block_bytes) else {
                break;
            };
            let range = buf.address()..buf.address() + buf.capacity() as u64;
            let open = self.ledger.open_work(range) as u64;
            self.board.open_wrs.fetch_add(open, Ordering::Relaxed);
            self.slots.push(Slot {
                buf,
                load: Load::Empty,
            });
        }
        self.slots.len() > before
    }

    /// Gives each empty slot a block, if there is one that has not arrived yet.
    fn load(&mut self) -> bool {
        let Some(seat) = &mut self.seat else {
            return false;
        };
        let mut any = false;
        for slot in &mut self.slots {
            while matches!(slot.load, Load::Empty) {
                let Some(carried) = seat.next() else {
                    return any;
                };
                any = true;
                if self.board.has_arrived(carried.block.number) {
                    give(&mut seat.spent, carried.block);
                } else {
                    slot.load = Load::Filling { carried, filled: 0 };
                }
            }
        }
        any
    }

    /// Copies one chunk into the first buffer that is not full.
    fn fill(&mut self) -> bool {
        for slot in &mut self.slots {
            if let Load::Filling { carried, filled } = &mut slot.load
                && *filled < carried.block.len
            {
                let end = (*filled + CHUNK_BYTES).min(carried.block.len);
                let chunk = &carried.block.bytes[*filled..end];
                slot.buf
                    .write_at(*filled, chunk)
                    .expect("a block fits its buffer");
                *filled = end;
                return true;
            }
        }
        false
    }

    /// Submits the full buffers, as far as there are grants to write to.
    fn submit(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        for at in 0..self.slots.len() {
            let Load::Filling { carried, filled } = &self.slots[at].load else {
                continue;
            };
            let (number, len) = (carried.block.number, carried.block.len);
            if *filled < len {
                continue;
            }
            if self.board.has_arrived(number) {
                self.empty(at);
                any = true;
                continue;
            }
            let Some(import) = self.open.last().copied() else {
                break;
            };
            let from = [Local::prefix(&self.slots[at].buf, len)];
            match cx.write_with_immediate(&import, 0, &from, number, at as u64) {
                Ok(()) => self.submitted(at, import),
                // Its `Revoked` is on its way.
                Err(SubmitError::Revoked | SubmitError::NoSuchImport) => {}
                // A full queue, or the end of this context.
                Err(_) => break,
            }
            self.open.pop();
            any = true;
        }
        any
    }

    fn submitted(&mut self, at: usize, import: Import) {
        let load = core::mem::replace(&mut self.slots[at].load, Load::Empty);
        let Load::Filling { mut carried, .. } = load else {
            unreachable!("what is submitted was filled");
        };
        if carried.sent {
            let resent = carried.block.len as u64;
            self.board.resent_bytes.fetch_add(resent, Ordering::Relaxed);
        }
        carried.sent = true;
        self.slots[at].load = Load::Transfer(Transfer {
            carried,
            import,
            in_flight: true,
            arrived: false,
            lost: false,
        });
    }

    /// Changes each transfer that fits, and looks what that ends.
    fn note(&mut self, fits: impl Fn(usize, &Transfer) -> bool, change: impl Fn(&mut Transfer)) {
        for at in 0..self.slots.len() {
            if let Load::Transfer(transfer) = &mut self.slots[at].load
                && fits(at, transfer)
            {
                change(transfer);
                self.settle(at);
            }
        }
        self.publish();
    }

    fn completed(&mut self, done: &OpDone) {
        let failed = done.status != Status::Ok;
        let at = done.token as usize;
        if failed
            && let Some(Load::Transfer(transfer)) = self.slots.get(at).map(|slot| &slot.load)
            && let Some(seat) = &mut self.seat
            && seat.failed_owners.last() != Some(&transfer.import.owner.id)
        {
            seat.failed_owners.push(transfer.import.owner.id);
        }
        self.note(
            |slot, _| slot == at,
            |transfer| {
                transfer.in_flight = false;
                transfer.lost |= failed;
            },
        );
    }

    /// Ends a transfer that nothing more is to be waited for.
    fn settle(&mut self, at: usize) {
        let Load::Transfer(transfer) = &self.slots[at].load else {
            return;
        };
        let Transfer { import, lost, .. } = *transfer;
        if transfer.in_flight || !(transfer.arrived || lost) {
            return;
        }
        if !lost {
            self.open.push(import);
        }
        if transfer.arrived || self.board.has_arrived(transfer.carried.block.number) {
            self.empty(at);
        } else {
            self.board.receiver_was_hit(self.stream);
            self.put_back(at);
        }
    }

    /// The block of a slot has arrived: it goes back to the reader.
    fn empty(&mut self, at: usize) {
        if let (Some(carried), Some(seat)) = (self.slots[at].take(), &mut self.seat) {
            give(&mut seat.spent, carried.block);
        }
    }

    /// The block of a slot is to be sent again.
    fn put_back(&mut self, at: usize) {
        if let (Some(carried), Some(seat)) = (self.slots[at].take(), &mut self.seat) {
            seat.pending.push_front(carried);
        }
    }

    fn publish(&self) {
        let alive = |slot: &&Slot| matches!(&slot.load, Load::Transfer(transfer) if !transfer.lost);
        let count = self.slots.iter().filter(alive);
        self.board
            .set_in_transfer(self.stream, count.count() as u32);
    }
}

impl Service for Sender {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        if self.seat.is_none() {
            // The predecessor gives it back in the step of its death.
            self.seat = self.chair.take();
        }
        let mut busy = self.equip(cx);
        busy |= self.load();
        busy |= self.fill();
        if self.submit(cx) {
            busy = true;
            self.publish();
        }
        if busy { Work::Busy } else { Work::Idle }
    }

    fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
        match event {
            Event::Granted(import) => self.open.push(import),
            Event::Revoked(id) => {
                self.open.retain(|import| import.id != id);
                self.note(
                    |_, transfer| transfer.import.id == id,
                    |transfer| transfer.lost = true,
                );
            }
            Event::Completed(done) => {
                // What a break has cut off is sent again: each block says its number.
                if done.status == Status::NotSent {
                    cx.resume();
                }
                self.completed(&done);
            }
            Event::Message(message) => {
                let mut number = [0; 4];
                if message.read_at(0, &mut number) {
                    let (number, from) = (u32::from_le_bytes(number), message.from());
                    self.note(
                        |_, transfer| {
                            transfer.carried.block.number == number && transfer.import.owner == from
                        },
                        |transfer| transfer.arrived = true,
                    );
                }
            }
            _ => {}
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let seated = self.seat.is_some();
        self.board
            .died(self.stream, Side::Sender, self.number, seated);
        if !seated {
            return;
        }
        for at in (0..self.slots.len()).rev() {
            self.put_back(at);
        }
        if let Some(seat) = self.seat.take() {
            self.chair.leave(seat);
        }
    }
}

impl Slot {
    /// The block that the slot has, which is empty then.
    fn take(&mut self) -> Option<Carried> {
        match core::mem::replace(&mut self.load, Load::Empty) {
            Load::Empty => None,
            Load::Filling { carried, .. } | Load::Transfer(Transfer { carried, .. }) => {
                Some(carried)
            }
        }
    }
}

impl SenderSeat {
    /// The next block to be sent.
    fn next(&mut self) -> Option<Carried> {
        let fresh = |block| Carried { block, sent: false };
        let pending = self.pending.pop_front();
        pending.or_else(|| self.inbox.pop().map(fresh))
    }
}
