//! Operations: the calls by which a context submits them. All checks come first; then the operation is in the books and will complete once.

use core::ops::Range;

use keyfence_mempool::Buf;
use keyfence_pmd::Rights;

use crate::context::ops::{LocalRange, MAX_RANGES, NIL, Op, Stage, Target};
use crate::engine::Context;
use crate::engine::state::{Core, OP_SLOT_BYTES};
use crate::error::SubmitError;
use crate::event::Import;
use crate::grant::import::ImportPhase;
use crate::ids::{ImportId, LaneId, RemoteContext};
use crate::limits::LimitError;
use crate::op::OpKind;
use crate::wire::HEADER_BYTES;

/// The longest message that is copied at the call; a longer one is sent from a buffer.
pub const MAX_COPIED_MESSAGE_BYTES: usize = OP_SLOT_BYTES - HEADER_BYTES;

/// A range of a buffer.
#[derive(Clone, Debug)]
pub struct Local<'a> {
    /// The buffer.
    pub buf: &'a Buf,
    /// Bytes of it.
    pub range: Range<usize>,
}

impl<'a> Local<'a> {
    /// Bytes `range` of `buf`.
    #[must_use]
    pub fn new(buf: &'a Buf, range: Range<usize>) -> Self {
        Self { buf, range }
    }

    /// The first `len` bytes of `buf`.
    #[must_use]
    pub fn prefix(buf: &'a Buf, len: usize) -> Self {
        Self::new(buf, 0..len)
    }
}

/// What the public calls have in common.
struct Draft {
    kind: OpKind,
    token: u64,
    argument: u64,
    value: u64,
    idempotent: bool,
}

impl Context<'_> {
    /// Writes local bytes to the import's, from `offset` on. The buffers are held until the completion; what they hold when it is posted is
    /// what the peer gets, so leave them alone until then.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was submitted then.
    pub fn write(
        &mut self,
        import: &Import,
        offset: u64,
        from: &[Local<'_>],
        token: u64,
    ) -> Result<(), SubmitError> {
        self.within(|cx| cx.memory(import.id, offset, from, Draft::new(OpKind::Write, token)))
    }

    /// Writes as [`Context::write`] does, where it does no harm if the bytes are written twice, also behind later writes of others: if the lane breaks before the write's end is known
    /// it is executed again, and what the context says behind it is said.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was submitted then.
    pub fn write_idempotent(
        &mut self,
        import: &Import,
        offset: u64,
        from: &[Local<'_>],
        token: u64,
    ) -> Result<(), SubmitError> {
        let draft = Draft {
            idempotent: true,
            ..Draft::new(OpKind::Write, token)
        };
        self.within(|cx| cx.memory(import.id, offset, from, draft))
    }

    /// Writes, and then tells the owner: it gets [`Event::Landed`](crate::Event::Landed) with `immediate`, after the bytes are in place.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was submitted then.
    pub fn write_with_immediate(
        &mut self,
        import: &Import,
        offset: u64,
        from: &[Local<'_>],
        immediate: u32,
        token: u64,
    ) -> Result<(), SubmitError> {
        let draft = Draft {
            argument: immediate.into(),
            ..Draft::new(OpKind::WriteImmediate, token)
        };
        self.within(|cx| cx.memory(import.id, offset, from, draft))
    }

    /// Reads the import's bytes from `offset` on into local ones. The buffers are held until the completion.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was submitted then.
    pub fn read(
        &mut self,
        import: &Import,
        offset: u64,
        into: &[Local<'_>],
        token: u64,
    ) -> Result<(), SubmitError> {
        self.within(|cx| cx.memory(import.id, offset, into, Draft::new(OpKind::Read, token)))
    }

    /// Adds to the 8 bytes at `offset`, whose address at the owner is a multiple of 8. The completion has the former value.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was submitted then.
    pub fn fetch_add(
        &mut self,
        import: &Import,
        offset: u64,
        add: u64,
        token: u64,
    ) -> Result<(), SubmitError> {
        let draft = Draft {
            argument: add,
            ..Draft::new(OpKind::FetchAdd, token)
        };
        self.within(|cx| cx.memory(import.id, offset, &[], draft))
    }

    /// Stores `desired` in the 8 bytes at `offset` if they hold `expected`. The completion has the former value.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was submitted then.
    pub fn compare_swap(
        &mut self,
        import: &Import,
        offset: u64,
        expected: u64,
        desired: u64,
        token: u64,
    ) -> Result<(), SubmitError> {
        let draft = Draft {
            argument: expected,
            value: desired,
            ..Draft::new(OpKind::CompareSwap, token)
        };
        self.within(|cx| cx.memory(import.id, offset, &[], draft))
    }

    /// Sends a short message; the bytes are copied now.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was submitted then. [`SubmitError::TooLong`] beyond [`MAX_COPIED_MESSAGE_BYTES`].
    pub fn send(&mut self, to: RemoteContext, bytes: &[u8], token: u64) -> Result<(), SubmitError> {
        if bytes.len() > MAX_COPIED_MESSAGE_BYTES {
            return Err(SubmitError::TooLong {
                len: bytes.len(),
                most: MAX_COPIED_MESSAGE_BYTES,
                remedy: "send a longer one from a buffer with send_from",
            });
        }
        self.within(|cx| cx.copied_message(to, bytes, token))
    }

    fn copied_message(
        &mut self,
        to: RemoteContext,
        bytes: &[u8],
        token: u64,
    ) -> Result<(), SubmitError> {
        let op = self.message(to, &[], bytes.len(), token)?;
        let slot = self.core.op_slot(op) + HEADER_BYTES;
        self.core
            .memory
            .arena
            .dma(slot, bytes.len())
            .and_then(|slot| slot.write_from(bytes))
            .expect("an operation's slot lies in the arena");
        Ok(())
    }

    /// Sends a message from buffers, without a copy. They are held until the completion.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was submitted then.
    pub fn send_from(
        &mut self,
        to: RemoteContext,
        from: &[Local<'_>],
        token: u64,
    ) -> Result<(), SubmitError> {
        self.within(|cx| cx.message(to, from, 0, token)).map(|_| ())
    }

    fn message(
        &mut self,
        to: RemoteContext,
        from: &[Local<'_>],
        copied: usize,
        token: u64,
    ) -> Result<u32, SubmitError> {
        self.must_be_live()?;
        let lane = self
            .core
            .lane_to(&to, self.slot)
            .ok_or(SubmitError::NoSession)?;
        let (ranges, bytes) = self.local_ranges(from)?;
        let len = bytes as usize + copied;
        let most = self.core.longest_message_bytes(lane);
        if len > most {
            return Err(SubmitError::TooLong {
                len,
                most,
                remedy: "write to a grant, or send several messages",
            });
        }
        let draft = Draft::new(OpKind::Send, token);
        self.accept(draft, lane, Target::Context(to), ranges, len as u64)
    }

    fn memory(
        &mut self,
        import: ImportId,
        offset: u64,
        local: &[Local<'_>],
        draft: Draft,
    ) -> Result<(), SubmitError> {
        self.must_be_live()?;
        let (ranges, mut bytes) = self.local_ranges(local)?;
        let entry = match self.core.imports.get(import) {
            Some(entry) if entry.context == self.slot => entry,
            _ => {
                self.core.stats.stale_names += 1;
                return Err(SubmitError::NoSuchImport);
            }
        };
        if entry.phase != ImportPhase::Live {
            return Err(SubmitError::Revoked);
        }
        let (wanted, what) = draft.needs();
        if !entry.rights.allow(wanted) {
            return Err(SubmitError::NotAllowed(what));
        }
        if wanted.atomic {
            if !self.core.caps.atomics {
                return Err(SubmitError::NoAtomics);
            }
            bytes = 8;
        }
        // R12: the initiator checks the range too, since not every device does.
        if offset.checked_add(bytes).is_none_or(|end| end > entry.len) {
            return Err(SubmitError::OutsideImport {
                offset,
                len: bytes,
                import_bytes: entry.len,
            });
        }
        let address = entry.address + offset;
        if wanted.atomic && !address.is_multiple_of(8) {
            return Err(SubmitError::Misaligned { address });
        }
        let lane = entry.lane;
        if !self.core.lane(lane).takes_work() {
            return Err(SubmitError::NoSession);
        }
        let target = Target::Memory {
            import: import.slot,
            address,
            owner: entry.owner,
        };
        self.accept(draft, lane, target, ranges, bytes)?;
        Ok(())
    }

    /// Whether it has neither been closed nor ended.
    #[inline]
    pub(super) fn is_live(&self) -> bool {
        self.core.contexts.get(self.slot).is_live()
    }

    #[inline]
    fn must_be_live(&self) -> Result<(), SubmitError> {
        if self.is_live() {
            Ok(())
        } else {
            Err(SubmitError::ContextClosed)
        }
    }

    #[inline(always)]
    fn local_ranges(
        &self,
        local: &[Local<'_>],
    ) -> Result<([Option<LocalRange>; MAX_RANGES], u64), SubmitError> {
        if local.len() > MAX_RANGES {
            return Err(SubmitError::TooManyRanges {
                given: local.len(),
                most: MAX_RANGES,
            });
        }
        let mut ranges = [None; MAX_RANGES];
        let mut bytes = 0;
        for (at, local) in local.iter().enumerate() {
            let Range { start, end } = local.range;
            let buffer_bytes = local.buf.capacity();
            if start > end || end > buffer_bytes || end - start > u32::MAX as usize {
                return Err(SubmitError::OutsideBuffer {
                    start,
                    end,
                    buffer_bytes,
                });
            }
            let pool = self
                .core
                .owned_pool(self.slot, local.buf)
                .ok_or(SubmitError::ForeignBuffer)?;
            bytes += (end - start) as u64;
            ranges[at] = Some(LocalRange {
                buf: local.buf.id(),
                pool,
                address: local.buf.address() + start as u64,
                len: (end - start) as u32,
            });
        }
        Ok((ranges, bytes))
    }

    /// Enters an operation in the books and puts it into its queue. Every check but the limits was made.
    #[inline(always)]
    fn accept(
        &mut self,
        draft: Draft,
        lane: LaneId,
        target: Target,
        ranges: [Option<LocalRange>; MAX_RANGES],
        bytes: u64,
    ) -> Result<u32, SubmitError> {
        let limits = &self.core.limits;
        let most = limits.context.bytes_in_flight.min(limits.bytes_in_flight);
        if bytes > most {
            return Err(SubmitError::TooLarge { len: bytes, most });
        }
        let receiver = target.receiver(draft.kind);
        if let Some(to) = receiver {
            self.core.admit_message_to(lane, self.slot, to)?;
        }
        if let Err(error) = self.core.admit_op(self.slot, bytes) {
            self.core.contexts.get_mut(self.slot).wants_writable = true;
            self.core.stats.submits_refused += 1;
            return Err(error.into());
        }
        if let Some(to) = receiver {
            self.core.keep_credit(lane, to);
        }
        self.core.hold_ranges(&ranges);
        if let Target::Memory { import, .. } = target {
            self.core.imports.at_mut(import).users += 1;
        }
        let inserted = self.core.ops.insert(Op {
            context: self.slot,
            token: draft.token,
            kind: draft.kind,
            lane,
            target,
            ranges,
            bytes,
            posted_bytes: 0,
            done_bytes: 0,
            in_flight: 0,
            cut: 0,
            stage: Stage::Queued,
            fate: None,
            argument: draft.argument,
            value: draft.value,
            idempotent: draft.idempotent,
            again: false,
            verdict: None,
            next: NIL,
        });
        let op = inserted.expect("the lcore's gauge bounds the slab");
        self.core.enqueue(lane, self.slot, op);
        self.core.stats.ops_submitted += 1;
        Ok(op)
    }
}

impl Draft {
    const fn new(kind: OpKind, token: u64) -> Self {
        Self {
            kind,
            token,
            argument: 0,
            value: 0,
            idempotent: false,
        }
    }

    const fn needs(&self) -> (Rights, &'static str) {
        match self.kind {
            OpKind::Read => (Rights::READ, "reading"),
            OpKind::FetchAdd | OpKind::CompareSwap => {
                let atomic = Rights {
                    atomic: true,
                    ..Rights::NONE
                };
                (atomic, "atomics")
            }
            _ => (Rights::WRITE, "writing"),
        }
    }
}

impl Core {
    /// Bytes of payload of the longest message that the lane carries.
    pub(super) fn longest_message_bytes(&self, lane: LaneId) -> usize {
        let theirs = u64::from(self.lane(lane).peer_frame_bytes);
        theirs.min(self.longest_frame_bytes) as usize - HEADER_BYTES
    }

    /// Takes the place of one operation in all gauges, or in none.
    #[inline(always)]
    fn admit_op(&mut self, slot: u16, bytes: u64) -> Result<(), LimitError> {
        let quota = &mut self.contexts.get_mut(slot).quota;
        let own = quota.ops.fits(1) & quota.bytes.fits(bytes);
        if !(own & self.ops_in_flight.fits(1) & self.bytes_in_flight.fits(bytes)) {
            return self.refuse_op(slot, bytes);
        }
        quota.ops.add(1);
        quota.bytes.add(bytes);
        self.ops_in_flight.add(1);
        self.bytes_in_flight.add(bytes);
        Ok(())
    }

    /// Names the first gauge that an operation does not fit.
    #[cold]
    fn refuse_op(&mut self, slot: u16, bytes: u64) -> Result<(), LimitError> {
        let context = self.contexts.get_mut(slot);
        context.quota.ops.admits(1)?;
        context.quota.bytes.admits(bytes)?;
        // It may have no operation of its own whose end would tell it.
        if !core::mem::replace(&mut context.wants_room, true) {
            self.wants_room.push_back(slot);
        }
        self.ops_in_flight.admits(1)?;
        self.bytes_in_flight.admits(bytes)
    }

    #[inline(always)]
    fn enqueue(&mut self, lane: LaneId, context: u16, op: u32) {
        let entry = self.lanes[lane.0 as usize]
            .as_deref_mut()
            .expect("checked by the caller");
        let on_lane = &mut entry.link.contexts[context as usize];
        if on_lane.stalled.is_some() {
            return self.hold_back(lane, context, op);
        }
        on_lane.queue.push(&mut self.ops, op);
        entry.enqueue_turn(context);
    }

    /// The pool of a buffer that belongs to the context.
    #[inline(always)]
    pub(super) fn owned_pool(&self, slot: u16, buf: &Buf) -> Option<u8> {
        let pool = self.pool_of(buf.address())?;
        (buf.owner() == self.owner_tag(slot)).then_some(pool)
    }
}
