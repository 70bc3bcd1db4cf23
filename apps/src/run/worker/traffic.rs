//! What a worker submits, and when.

use keyfence::config::{LoadConfig, OperationMix};
use keyfence::ids::ImportId;
use keyfence::{Context, Import, Local, MAX_COPIED_MESSAGE_BYTES, SubmitError};

use super::Worker;
use super::cell::State;
use super::ops::Op;
use super::plan::Role;
use crate::run::board::{BUSY, DOOMED, HOT, READY, Stage};
use crate::run::pattern::HEADER_BYTES;

/// Operations in flight of a worker in the flat-out phase.
const FLAT_WINDOW: usize = 4;

/// Operations in flight of a worker that falls behind its pace.
const PACED_WINDOW: usize = 16;

/// Operations in flight of a worker that is about to be killed: more bytes than the device takes at once, so that some wait even while this
/// lcore does not run and its peer does.
const DOOMED_WINDOW: usize = 56;

/// Operations in flight of a worker whose partner is about to revoke.
const HOT_WINDOW: usize = 24;

/// Messages in flight of such a worker that can do nothing else.
const SEND_WINDOW: usize = 8;

/// Of how many flat-out operations one is timed: a time stamp costs more than an operation.
const FLAT_SAMPLE: u64 = 16;

/// How long after a large operation a worker begins the next.
const LARGE_NS: u64 = 20_000_000;

/// Marks the second word of a copied message as a number and not a fill.
pub const NUMBERED: u64 = 1 << 63;

/// Offsets of operations are multiples of this.
const ALIGN: usize = 64;

/// When the next operations are due.
#[derive(Debug, Default)]
pub struct Pace {
    interval_ns: u64,
    /// The intended start of the next one.
    next_ns: u64,
    large_ns: u64,
    submitted: u64,
}

impl Pace {
    /// A phase begins. `first`, below `members`, spreads the workers over the interval.
    pub fn begin(&mut self, now_ns: u64, load: &LoadConfig, members: usize, first: usize) {
        let interval_ns = 1e9 * members as f64 / load.paced_rate_per_s;
        self.interval_ns = (interval_ns as u64).max(1);
        let part = |ns: u64| now_ns + ns / members as u64 * first as u64;
        self.next_ns = part(self.interval_ns);
        self.large_ns = part(LARGE_NS);
    }
}

/// What is to be submitted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
    Send,
}

impl Worker {
    /// Submits what is due. Whether anything was.
    pub(super) fn submit_due(&mut self, cx: &mut Context<'_>) -> bool {
        let member = &self.board.sides[self.side].members[self.index];
        if !self.can_run() {
            self.pace.next_ns = self.pace.next_ns.max(cx.now_ns());
            return false;
        }
        if !member.has(READY) && self.wanted.is_empty() {
            member.set(READY);
        }
        if member.has_any(DOOMED | HOT) {
            return self.burst(cx);
        }
        match self.stage {
            Stage::Paced => self.paced(cx),
            Stage::Flat => self.flat(cx),
            Stage::Setup | Stage::WarmUp | Stage::Drain => false,
        }
    }

    fn can_run(&self) -> bool {
        self.partner.is_some()
            && (self.expected_imports == 0 || self.uses.iter().any(super::Use::is_live))
    }

    /// Open loop: what could not be submitted in time still counts from when it should have been.
    fn paced(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while self.pace.next_ns <= cx.now_ns() && self.ops.open() < PACED_WINDOW {
            if !self.submit(cx, Some(self.pace.next_ns), None) {
                break;
            }
            self.pace.next_ns += self.pace.interval_ns;
            any = true;
        }
        any
    }

    /// Closed loop.
    fn flat(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while self.ops.open() < FLAT_WINDOW {
            let timed = self.pace.submitted.is_multiple_of(FLAT_SAMPLE);
            let start_ns = timed.then(|| self.board.clock.now_ns());
            if !self.submit(cx, start_ns, None) {
                break;
            }
            any = true;
        }
        any
    }

    /// Keeps many operations in flight, by grants alone if there are any. One that can only send keeps few: past the receiver's credits they
    /// would wait here and not be in flight.
    fn burst(&mut self, cx: &mut Context<'_>) -> bool {
        let sends_only = self.expected_imports == 0;
        let member = &self.board.sides[self.side].members[self.index];
        let window = match member.has(DOOMED) {
            _ if sends_only => SEND_WINDOW,
            true => DOOMED_WINDOW,
            false => HOT_WINDOW,
        };
        let mut any = false;
        while self.ops.open() < window {
            let kind = match self.random.below(8) {
                _ if sends_only => Kind::Send,
                0 => Kind::Read,
                _ => Kind::Write,
            };
            if !self.submit(cx, None, Some(kind)) {
                break;
            }
            any = true;
        }
        if self.ops.open() * 4 >= window * 3 {
            self.board.sides[self.side].members[self.index].set(BUSY);
        }
        any
    }

    /// Submits one operation, of a kind chosen by the mix unless one is given. False if there is no room.
    fn submit(&mut self, cx: &mut Context<'_>, start_ns: Option<u64>, kind: Option<Kind>) -> bool {
        let is_burst = kind.is_some();
        // Every other burst is of small operations alone, which are all on the wire at once.
        let large = if is_burst {
            self.revoked.is_multiple_of(2)
        } else {
            self.pace.large_ns <= cx.now_ns()
        };
        if large && self.submit_large(cx, start_ns) {
            return true;
        }
        let kind = kind.unwrap_or_else(|| choose(&self.board.load.mix, self.random.bits()));
        // The longest of a burst's, so that some are always on the way.
        let sizes = &self.board.load.sizes_bytes;
        let size = match is_burst {
            true => sizes.iter().copied().max(),
            false => sizes.get(self.random.below(sizes.len())).copied(),
        };
        let size = size.expect("a load has sizes") as usize;
        let live = self.uses.iter().filter(|entry| entry.is_live()).count();
        let import = (live > 0 && kind != Kind::Send).then(|| {
            let nth = self.random.below(live);
            let mut uses = self.uses.iter().filter(|entry| entry.is_live());
            uses.nth(nth).expect("below their number").import
        });
        match import {
            None => self.submit_send(cx, start_ns, size),
            Some(import) => self.submit_memory(cx, start_ns, import, kind, size),
        }
    }

    /// A large operation, if there is a grant and a buffer for one that are not in use.
    fn submit_large(&mut self, cx: &mut Context<'_>, start_ns: Option<u64>) -> bool {
        let Some(len) = self.large_local() else {
            return false;
        };
        let large = |entry: &&super::Use| entry.is_live() && entry.import.len >= len as u64;
        let Some(import) = self.uses.iter().find(large).map(|entry| entry.import) else {
            return false;
        };
        let role = if self.random.once_in(2) {
            Role::Sink
        } else {
            Role::Source
        };
        let Some(cell) = self.idle_cell(role, true) else {
            return false;
        };
        let done = self.post(cx, start_ns, import, cell, 0, len);
        if done {
            self.pace.large_ns = cx.now_ns() + LARGE_NS;
        }
        done
    }

    fn large_local(&self) -> Option<usize> {
        self.cells
            .iter()
            .find(|cell| cell.large && cell.role != Role::Grant)
            .map(|cell| cell.len)
    }

    fn submit_memory(
        &mut self,
        cx: &mut Context<'_>,
        start_ns: Option<u64>,
        import: Import,
        kind: Kind,
        size: usize,
    ) -> bool {
        let role = if kind == Kind::Read {
            Role::Sink
        } else {
            Role::Source
        };
        // With every sink in use a write goes instead of a read.
        let cell = self
            .idle_cell(role, false)
            .or_else(|| self.idle_cell(Role::Source, false));
        let Some(cell) = cell else {
            return false;
        };
        let room = self.cells[cell].len.min(import.len as usize);
        let len = size.min(room);
        let offset = self.random.below((room - len) / ALIGN + 1) * ALIGN;
        self.post(cx, start_ns, import, cell, offset, len)
    }

    /// A buffer that an operation may use: a sink has one at a time.
    fn idle_cell(&mut self, role: Role, large: bool) -> Option<usize> {
        let most_busy = if role == Role::Source && !large {
            u32::MAX
        } else {
            0
        };
        let first = self.random.below(self.cells.len());
        let mut cells = (first..self.cells.len()).chain(0..first);
        cells.find(|&at| {
            let cell = &self.cells[at];
            cell.role == role
                && cell.large == large
                && cell.state == State::Ready
                && cell.busy <= most_busy
        })
    }

    /// A write or read between a buffer and an import, at the same offset in both, as the patterns need it.
    fn post(
        &mut self,
        cx: &mut Context<'_>,
        start_ns: Option<u64>,
        import: Import,
        at: usize,
        offset: usize,
        len: usize,
    ) -> bool {
        let Some(token) = self.ops.next_token() else {
            return false;
        };
        let era = self.board.wishes.era();
        let cell = &self.cells[at];
        let local = [Local::new(&cell.buf, offset..offset + len)];
        let reads = cell.role == Role::Sink;
        let done = if reads {
            cx.read(&import, offset as u64, &local, token)
        } else if self.pace.submitted.is_multiple_of(8) {
            cx.write_with_immediate(&import, offset as u64, &local, self.index as u32, token)
        } else {
            cx.write(&import, offset as u64, &local, token)
        };
        if let Err(error) = done {
            self.refused(Some(import.id), &error);
            return false;
        }
        self.cells[at].busy += 1;
        let entry = self
            .uses
            .iter_mut()
            .find(|entry| entry.import.id == import.id);
        let entry = entry.expect("the import was chosen from these");
        entry.in_flight += 1;
        entry.writes += u32::from(!reads);
        self.submitted(Op {
            import: Some(import.id),
            cell: Some(at),
            offset,
            len,
            learns: false,
            number: None,
            era,
            start_ns,
        });
        true
    }

    /// A message: a short one is copied and numbered, a longer one goes out of a source.
    fn submit_send(&mut self, cx: &mut Context<'_>, start_ns: Option<u64>, size: usize) -> bool {
        let (Some(to), Some(token)) = (self.partner, self.ops.next_token()) else {
            return false;
        };
        let Some(most) = cx.max_message_bytes(&to) else {
            return false;
        };
        let era = self.board.wishes.era();
        let len = size.clamp(HEADER_BYTES, most.max(HEADER_BYTES));
        let cell = self.idle_cell(Role::Source, false);
        let (done, cell) = match cell {
            Some(at) if len > MAX_COPIED_MESSAGE_BYTES => {
                let from = [Local::prefix(
                    &self.cells[at].buf,
                    len.min(self.cells[at].len),
                )];
                (cx.send_from(to, &from, token), Some(at))
            }
            _ => {
                let len = len.min(MAX_COPIED_MESSAGE_BYTES);
                let mut bytes = [0; MAX_COPIED_MESSAGE_BYTES];
                bytes[..8].copy_from_slice(&self.me.to_ne_bytes());
                bytes[8..HEADER_BYTES].copy_from_slice(&(NUMBERED | self.sent).to_ne_bytes());
                (cx.send(to, &bytes[..len], token), None)
            }
        };
        if let Err(error) = done {
            self.refused(None, &error);
            return false;
        }
        let number = cell.is_none().then_some((self.sent, self.partners));
        match cell {
            Some(at) => self.cells[at].busy += 1,
            None => self.sent += 1,
        }
        self.submitted(Op {
            import: None,
            cell,
            offset: 0,
            len,
            learns: false,
            number,
            era,
            start_ns,
        });
        true
    }

    fn submitted(&mut self, op: Op) {
        self.ops.enter(op);
        self.pace.submitted += 1;
    }

    /// A submission that was refused: by a limit, or since its target is going, as an event says or will say.
    fn refused(&mut self, import: Option<ImportId>, error: &SubmitError) {
        match error {
            why if why.is_back_pressure() => {}
            // The engine has begun to end this context.
            SubmitError::ContextClosed => {}
            SubmitError::ContextGone => {
                // By an import of a former partner, whose lane has not said yet that it is taken back, it is that one who is gone.
                let owner = self
                    .uses
                    .iter()
                    .find(|entry| Some(entry.import.id) == import);
                if owner.is_none_or(|entry| Some(entry.import.owner) == self.partner) {
                    self.lose_partner("an operation was refused with ContextGone");
                }
            }
            SubmitError::NoSession if self.board.is_lossy() => {
                self.lose_partner("an operation was refused with NoSession");
            }
            SubmitError::Revoked => {
                let entry = self
                    .uses
                    .iter_mut()
                    .find(|entry| Some(entry.import.id) == import);
                entry.expect("the import was chosen from these").doubt = true;
            }
            error => {
                let text = error.to_string();
                self.bystander_error(|| format!("submit: {text}"));
            }
        }
    }
}

fn choose(mix: &OperationMix, random: u64) -> Kind {
    let sum = u64::from(mix.write) + u64::from(mix.read) + u64::from(mix.send);
    let at = random % sum;
    match at {
        at if at < u64::from(mix.write) => Kind::Write,
        at if at < u64::from(mix.write) + u64::from(mix.read) => Kind::Read,
        _ => Kind::Send,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_gives_each_kind_its_weight_and_0_is_never() {
        let mix = OperationMix {
            write: 2,
            read: 1,
            send: 0,
        };
        let chosen: Vec<Kind> = (0..6).map(|random| choose(&mix, random)).collect();
        let count = |kind| chosen.iter().filter(|chosen| **chosen == kind).count();
        assert_eq!([Kind::Write, Kind::Read, Kind::Send].map(count), [4, 2, 0]);
    }
}
