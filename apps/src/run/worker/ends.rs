//! How operations end, and what messages bring.

use keyfence::{Context, Message, OpDone, OpKind, Status};

use super::Worker;
use super::ops::Op;
use super::partner::Known;
use super::traffic::NUMBERED;
use crate::run::pattern::{Fill, HEADER_BYTES, Words, foreign_bytes, identity};

/// Bytes of a read that are looked at in one piece.
const LOOK_BYTES: usize = 4096;

/// Of a large read, a piece this long is looked at in each stretch of `LARGE_STRETCH`.
const LARGE_LOOK_BYTES: usize = 256;
const LARGE_STRETCH: usize = 64 << 10;

/// Fills that the partner's memory may hold at a time: its own and each of our sources.
const MAX_FILLS: usize = 4;

impl Worker {
    pub(super) fn completed(&mut self, cx: &mut Context<'_>, done: &OpDone) {
        let Some(op) = self.ops.take(done.token) else {
            return self
                .bystander_error(|| format!("a second completion, or of no operation: {done:?}"));
        };
        if let Some(cell) = op.cell {
            self.cells[cell].busy -= 1;
        }
        let import = op.import.map(|import| {
            let at = self.uses.iter().position(|entry| entry.import.id == import);
            at.expect("an import stays until its last operation has ended")
        });
        match done.status {
            Status::Ok => self.succeeded(&op, done, import),
            // The target's end is told by an event of its own.
            Status::ContextGone => {}
            Status::PeerLost | Status::Indeterminate | Status::NotSent if self.board.is_lossy() => {
                self.lost(cx, &op);
            }
            Status::Indeterminate | Status::NotSent if self.may_be_cut(&op, done) => {
                self.cut_off(cx, &op, done);
            }
            Status::Revoked | Status::Indeterminate if import.is_some() => {
                self.uses[import.expect("just seen")].doubt = true;
            }
            status => {
                self.bystander_error(|| format!("{:?} ended as {status:?}", done.kind));
                // An error all the same where no lane was to break; the rest goes on.
                cx.resume();
            }
        }
        if let Some(at) = import {
            let entry = &mut self.uses[at];
            entry.in_flight -= 1;
            if done.kind != OpKind::Read {
                entry.writes -= 1;
            }
            self.drop_if_done(at);
        }
    }

    fn succeeded(&mut self, op: &Op, done: &OpDone, import: Option<usize>) {
        if op.learns {
            self.learned(
                import.expect("a header is read by an import"),
                op.cell.expect("into a buffer"),
            );
            return;
        }
        self.local.count(done.kind, done.bytes);
        if let Some(start_ns) = op.start_ns {
            self.time(done.kind, start_ns);
        }
        let Some(at) = import else {
            return;
        };
        if done.kind == OpKind::Read {
            self.look_at(at, op);
        } else if self.uses[at].revoked && self.uses[at].alone && !self.uses[at].counted {
            // It succeeded, so it was on its way when the grant was taken back.
            self.uses[at].counted = true;
            self.board.sides[self.side]
                .tally()
                .revokes_with_write_in_flight += 1;
        }
    }

    fn time(&mut self, kind: OpKind, start_ns: u64) {
        let now_ns = self.board.clock.now_ns();
        let ns = now_ns.saturating_sub(start_ns);
        // A worker that waits for a new partner is none either, but then it submits nothing.
        let bystander = self.board.is_bystander(self.side, self.index);
        let bystander = bystander.then(|| self.board.is_chaos(now_ns));
        if self.local.sample(kind, ns, bystander) {
            self.local.flush(&mut self.board.sides[self.side].tally());
        }
    }

    /// R1: what a read brought was in the grant's memory by right: its owner's fill, or what this holder wrote.
    fn look_at(&mut self, at: usize, op: &Op) {
        let Known::Fill(owner) = self.uses[at].known else {
            return;
        };
        let mut fills: [Words; MAX_FILLS] = [owner; MAX_FILLS];
        let sources = self.sources.len().min(MAX_FILLS - 1);
        fills[1..=sources].copy_from_slice(&self.sources[..sources]);
        let cell = &self.cells[op.cell.expect("a read goes into a buffer")];
        let (stretch, look) = if cell.large {
            (LARGE_STRETCH, LARGE_LOOK_BYTES)
        } else {
            (LOOK_BYTES, LOOK_BYTES)
        };
        let (mut foreign, mut bytes) = (0, [0; LOOK_BYTES]);
        for start in (op.offset..op.offset + op.len).step_by(stretch) {
            let len = look.min(op.offset + op.len - start);
            let read = cell.buf.read_at(start, &mut bytes[..len]);
            read.expect("the operation lies in its buffer");
            foreign += foreign_bytes(&bytes[..len], start, &fills[..=sources]);
        }
        let late = self.uses[at].revoked;
        if !late && foreign == 0 {
            return;
        }
        let mut tally = self.board.sides[self.side].tally();
        tally.late_reads_checked += u64::from(late);
        if foreign > 0 {
            tally.faults.late_reads += 1;
            let name = &self.name;
            tally.note(|| {
                format!("{name}: a read of {} bytes brought {foreign} that its grant never held; late: {late}", op.len)
            });
        }
    }

    /// A message says who sent it, and its bytes must be his; the numbered ones come in order, each once.
    pub(super) fn message_came(&mut self, message: &Message) {
        let mut header = [0; HEADER_BYTES];
        if !message.read_at(0, &mut header) {
            return self.bystander_error(|| format!("a message of {} bytes", message.len()));
        }
        let sent = Fill::of_header(header);
        let sender = identity(self.board.link.engines[1 - self.side], message.from().id);
        if sent.owner != sender {
            let mut tally = self.board.sides[self.side].tally();
            tally.faults.late_reads += 1;
            let name = &self.name;
            tally.note(|| format!("{name}: a message from {sender:#x} brought {sent:?}"));
            return;
        }
        if sent.number & NUMBERED == 0 {
            return;
        }
        let number = sent.number & !NUMBERED;
        if self.hears.replace(message.from()) != Some(message.from()) {
            // A new life of the partner begins.
            self.received = 0;
        }
        if number != self.received {
            let expected = self.received;
            self.bystander_error(|| format!("message {number} where {expected} was due"));
        }
        self.received = number + 1;
    }
}
