//! A worker's buffers: allocated, watched, granted, revoked.

use core::ops::Range;

use keyfence::ids::GrantId;
use keyfence::{AllocError, Context, GrantError, Lease, Rights};

use super::Worker;
use super::cell::{Cell, State, Tended};
use super::plan::{Role, Wanted, large_bytes, small_bytes};
use crate::run::board::{HOT, READY, REVOKE};
use crate::run::oracle::{Occasion, inspect};
use crate::run::pattern::Fill;

/// Bytes that a worker fills and scans in one poll at most.
const TEND_BYTES: usize = 16 << 10;

/// How long before a revoke the partner is told to be busy with the grant.
const HOT_NS: u64 = 50_000;

/// How long a holder looks at its sources when a grant was taken back with operations in flight: long enough for the owner to act on an
/// answer that came too early.
const RECHECK_NS: u64 = 200_000;

/// How long a refused allocation or grant waits for its next try.
const RETRY_NS: u64 = 500_000;

/// What a worker is about to take back, or has.
#[derive(Debug, Default)]
pub struct Revoking {
    /// A grant to revoke, and when.
    due: Option<(GrantId, u64)>,
    /// When to ask for a flush.
    flush_ns: Option<u64>,
    /// Grants that were revoked before the flush under way, if one is.
    flushing: Option<Vec<GrantId>>,
}

/// A buffer of the plan, or one that is only watched.
#[derive(Clone, Copy)]
enum Place {
    Cell(usize),
    Hunted(usize),
}

const RIGHTS: Rights = Rights {
    read: true,
    write: true,
    ..Rights::NONE
};

impl Worker {
    /// Allocates the next buffer of the plan.
    pub(super) fn allocate(&mut self, cx: &mut Context<'_>) -> bool {
        if self.wanted.is_empty() || cx.now_ns() < self.retry_ns {
            return false;
        }
        let wanted = self.wanted[0];
        let Some(cell) = self.take(cx, wanted) else {
            self.retry_ns = cx.now_ns() + RETRY_NS;
            return false;
        };
        self.wanted.remove(0);
        if wanted.role == Role::Source {
            self.sources.push(cell.words);
        }
        self.cells.push(cell);
        true
    }

    /// After a death on this side: takes a buffer, most likely one of the dead's.
    pub(super) fn hunt(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.board.sides[self.side].hunt.take(cx.now_ns()) {
            return false;
        }
        // The large pool is small: the dead's are found there by their heirs.
        let large = self.random.once_in(4) && !self.hunted.iter().any(|cell| cell.large);
        let role = Role::Hunt;
        let taken = self.take(cx, Wanted { role, large });
        self.hunted.extend(taken);
        true
    }

    fn take(&mut self, cx: &mut Context<'_>, wanted: Wanted) -> Option<Cell> {
        let len = if wanted.large {
            large_bytes(&self.board.load)
        } else {
            small_bytes(&self.board.load)
        };
        let buf = match cx.alloc(len) {
            Ok(buf) => buf,
            Err(
                AllocError::PoolEmpty { .. } | AllocError::Limit(_) | AllocError::ContextClosed,
            ) => return None,
            Err(error) => {
                self.bystander_error(|| format!("alloc: {error}"));
                return None;
            }
        };
        let last = self.board.sides[self.side]
            .tally()
            .owners
            .insert(buf.address(), self.me);
        let reused = last.is_some_and(|owner| owner != self.me);
        let fill = self.next_fill();
        let cell = Cell::new(buf, wanted.role, wanted.large, len, fill, reused);
        if reused {
            self.board.sides[self.side].tally().reuses_begun += 1;
            inspect(&self.board, self.side, &cell.addresses(), Occasion::Reuse);
        }
        self.tending += 1;
        Some(cell)
    }

    pub(super) fn next_fill(&mut self) -> Fill {
        self.fills += 1;
        Fill {
            owner: self.me,
            number: self.fills,
        }
    }

    /// Fills and scans what is due; gives back what was only watched.
    pub(super) fn tend(&mut self, cx: &mut Context<'_>) -> bool {
        if self.tending == 0 {
            return false;
        }
        let (now_ns, mut budget, mut any) = (cx.now_ns(), TEND_BYTES, false);
        for at in 0..self.cells.len() {
            any |= self.tend_cell(Place::Cell(at), now_ns, &mut budget) != Tended::Nothing;
        }
        let mut at = 0;
        while at < self.hunted.len() {
            let tended = self.tend_cell(Place::Hunted(at), now_ns, &mut budget);
            any |= tended != Tended::Nothing;
            if matches!(tended, Tended::Scanned(_)) {
                let cell = self.hunted.swap_remove(at);
                cx.free(cell.buf);
            } else {
                at += 1;
            }
        }
        any
    }

    fn tend_cell(&mut self, place: Place, now_ns: u64, budget: &mut usize) -> Tended {
        let cell = match place {
            Place::Cell(at) => &mut self.cells[at],
            Place::Hunted(at) => &mut self.hunted[at],
        };
        if *budget == 0 || !cell.is_tended() {
            return Tended::Nothing;
        }
        let mut changed = 0;
        let tended = cell.tend(now_ns, *budget, &mut changed);
        let mut scanned = 0;
        match tended {
            Tended::Nothing => {}
            Tended::Bytes(bytes) => *budget -= bytes,
            Tended::Scanned(bytes) => {
                *budget -= bytes as usize;
                scanned = cell.len as u64;
                self.tending -= 1;
            }
        }
        if scanned + changed > 0 {
            let (range, reused) = (cell.addresses(), cell.reused);
            self.note_scan(&range, scanned, changed, reused);
        }
        tended
    }

    /// The worker ends: what it has not scanned yet is scanned now, so that every reuse is.
    pub(super) fn scan_what_is_left(&mut self) {
        let (mut cells, hunted) = (
            core::mem::take(&mut self.cells),
            core::mem::take(&mut self.hunted),
        );
        cells.extend(hunted);
        for cell in cells.iter_mut().filter(|cell| cell.is_tended()) {
            let changed = cell.scan_rest();
            self.note_scan(&cell.addresses(), cell.len as u64, changed, cell.reused);
        }
    }

    fn note_scan(&self, range: &Range<u64>, scanned: u64, changed: u64, reused: bool) {
        let mut tally = self.board.sides[self.side].tally();
        tally.bytes_scanned += scanned;
        tally.reuses += u64::from(reused && scanned > 0);
        tally.faults.late_bytes += changed;
        if changed > 0 {
            let name = &self.name;
            tally.note(|| {
                let (start, end) = (range.start, range.end);
                format!(
                    "{name}: {changed} bytes changed in {start:#x}..{end:#x}, which nobody may use"
                )
            });
        }
    }

    /// Right after a grant was taken back with operations in flight, a holder looks whether its sources are what they were. That keeps its lcore
    /// from polling for a while, which must hurt nobody but it: what it has told the owner has to be true already.
    pub(super) fn recheck(&mut self, now_ns: u64) -> bool {
        // Not in the step of the event, at whose end the answer is posted.
        if self.recheck_ns.is_none_or(|event_ns| event_ns == now_ns) {
            return false;
        }
        self.recheck_ns = None;
        let until_ns = self.board.clock.now_ns() + RECHECK_NS;
        loop {
            self.scan_sources();
            if self.board.clock.now_ns() >= until_ns {
                return true;
            }
        }
    }

    fn scan_sources(&self) {
        for cell in &self.cells {
            if cell.role == Role::Source && cell.state == State::Ready {
                let changed = cell.words.changed(&cell.buf.dma(), 0..cell.len);
                let range = cell.addresses();
                self.note_scan(&range, range.end - range.start, changed, false);
            }
        }
    }

    /// Opens what is ready to the partner.
    pub(super) fn grant(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(partner) = self.partner else {
            return false;
        };
        if self.ungranted == 0 || cx.now_ns() < self.retry_ns {
            return false;
        }
        let ready = |cell: &&mut Cell| cell.role == Role::Grant && cell.state == State::Ready;
        let Some(cell) = self.cells.iter_mut().find(ready) else {
            return false;
        };
        match cx.grant(&cell.buf, 0..cell.len, RIGHTS, partner, Lease::Configured) {
            Ok(id) => {
                cell.state = State::Granted(id);
                cell.grant = Some(id);
                self.ungranted -= 1;
                return true;
            }
            Err(GrantError::HolderGone) => self.lose_partner("a grant was refused with HolderGone"),
            Err(GrantError::NoSession) => self.lose_partner("a grant was refused with NoSession"),
            Err(GrantError::Limit(_) | GrantError::ContextClosed) => {
                self.retry_ns = cx.now_ns() + RETRY_NS;
            }
            Err(error) => self.bystander_error(|| format!("grant: {error}")),
        }
        false
    }

    /// The end of one of our grants.
    pub(super) fn zapped(&mut self, id: GrantId) {
        let fill = self.next_fill();
        let ours =
            |cell: &&mut Cell| cell.state == State::Granted(id) || cell.state == State::Revoked(id);
        let Some(cell) = self.cells.iter_mut().find(ours) else {
            return self.bystander_error(|| format!("Zapped({id:?}) of no grant"));
        };
        cell.zapped(fill);
        let range = cell.addresses();
        self.board.sides[self.side].tally().reuses_begun += 1;
        self.tending += 1;
        self.ungranted += 1;
        inspect(&self.board, self.side, &range, Occasion::Zapped);
    }

    /// Revokes when asked to, and asks for a flush behind every other revoke, while the batch of it is under way.
    pub(super) fn revoke(&mut self, cx: &mut Context<'_>) {
        let now_ns = cx.now_ns();
        let member = &self.board.sides[self.side].members[self.index];
        if self.revoking.due.is_none() && member.has(REVOKE) && member.clear(REVOKE) {
            self.choose_grant(now_ns);
        }
        if let Some((id, at_ns)) = self.revoking.due
            && at_ns <= now_ns
        {
            self.revoking.due = None;
            self.revoke_grant(cx, id);
        }
        if let Some(at_ns) = self.revoking.flush_ns
            && at_ns <= now_ns
            && self.revoking.flushing.is_none()
        {
            self.revoking.flush_ns = None;
            let revoked = |cell: &Cell| match cell.state {
                State::Revoked(id) => Some(id),
                _ => None,
            };
            let grants: Vec<GrantId> = self.cells.iter().filter_map(revoked).collect();
            // Without one there is nothing to learn from it; too many at a time is no fault.
            if !grants.is_empty() && cx.flush(0).is_ok() {
                self.revoking.flushing = Some(grants);
            }
        }
    }

    fn choose_grant(&mut self, now_ns: u64) {
        let granted = |cell: &Cell| match cell.state {
            State::Granted(id) => Some((id, cell.large)),
            _ => None,
        };
        let grants: Vec<(GrantId, bool)> = self.cells.iter().filter_map(granted).collect();
        if grants.is_empty() {
            return;
        }
        let mut chosen = self.random.below(grants.len());
        if let Some(large) = grants.iter().position(|(_, large)| *large)
            && self.random.once_in(2)
        {
            chosen = large;
        }
        let partner = &self.board.sides[1 - self.side].members[self.index];
        if partner.has(READY) {
            partner.set(HOT);
        }
        self.revoking.due = Some((grants[chosen].0, now_ns + HOT_NS));
    }

    fn revoke_grant(&mut self, cx: &mut Context<'_>, id: GrantId) {
        let Some(cell) = self
            .cells
            .iter_mut()
            .find(|cell| cell.state == State::Granted(id))
        else {
            return;
        };
        if cx.revoke(id).is_err() {
            // It has ended by itself: the holder is gone, and its Zapped is on the way.
            return;
        }
        cell.state = State::Revoked(id);
        if self.revoking.flush_ns.is_none() && self.random.once_in(2) {
            self.revoking.flush_ns = Some(cx.now_ns() + self.board.flush_interval_ns);
        }
    }

    /// A flush returned: each key that was retired before it is dead, unless its memory is in a new grant already.
    pub(super) fn flushed(&mut self, quarantined: u32) {
        let grants = self.revoking.flushing.take().unwrap_or_default();
        if quarantined > 0 {
            // Named by the end of the run; nothing is promised about these.
            return;
        }
        for cell in &self.cells {
            if cell.grant.is_some_and(|grant| grants.contains(&grant)) {
                inspect(&self.board, self.side, &cell.addresses(), Occasion::Flushed);
            }
        }
    }
}
