//! Grants: each ends once, what it promised of the bytes written by it, and what a flush says of all of them (R3, R7).

use std::ops::Range;

use keyfence::ids::{ContextId, GrantId, ImportId, LcoreId, RemoteContext};
use keyfence::{Buf, Import, Rights, Status};

use super::ends::{Ending, SLACK_NS};
use super::{About, Books, Who};

/// How a grant has ended for its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrantEnd {
    Open,
    Zapped,
    Quarantined,
    /// With its context.
    Reclaimed,
}

/// What of a write is found in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    All,
    Part,
    Nothing,
}

/// Bytes that one write fills with its number, and nothing else touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    pub serial: u64,
    pub offset: u64,
    pub len: u64,
    /// How the write ended, once that is known.
    pub status: Option<Status>,
    /// What the owner found when the grant had ended.
    pub found: Option<Presence>,
}

/// The holder's side of a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holding {
    /// Not heard of, or refused.
    Nothing,
    Live(ImportId),
    /// The holder was told that it is dead.
    Revoked,
}

pub struct GrantBook {
    pub owner: ContextId,
    pub range: Range<u64>,
    pub rights: Rights,
    pub holder: Who,
    /// As its owner names it.
    pub to: RemoteContext,
    pub end: GrantEnd,
    pub holding: Holding,
    /// When it was first taken back.
    pub retired_ns: Option<u64>,
    pub stamps: Vec<Stamp>,
    /// Where the next write goes; the first word is for atomics.
    cursor: u64,
    pub adds_ok: u64,
    pub adds_maybe: u64,
}

/// Lengths that are used in turn.
pub const LENS: u64 = 997;

/// Bytes at the start of a grant that atomics count in.
pub const COUNTER_BYTES: u64 = 8;

impl Books {
    /// A length for a grant, from `least` to less than [`LENS`] more, that no grant of the engine has had for long.
    pub fn free_len(&mut self, host: usize, least: u64) -> u64 {
        let book = &mut self.hosts[host];
        loop {
            book.len_turn = (book.len_turn + 1) % LENS;
            let len = least + book.len_turn;
            if !book.lens.contains_key(&len) {
                return len;
            }
        }
    }

    pub fn granted(
        &mut self,
        host: usize,
        owner: ContextId,
        id: GrantId,
        range: Range<u64>,
        rights: Rights,
        to: RemoteContext,
    ) {
        let holder = self.remote(host, &to);
        let name = (owner.lcore, id);
        let grant = GrantBook {
            owner,
            rights,
            holder,
            to,
            end: GrantEnd::Open,
            holding: Holding::Nothing,
            retired_ns: None,
            stamps: Vec::new(),
            cursor: COUNTER_BYTES,
            adds_ok: 0,
            adds_maybe: 0,
            range: range.clone(),
        };
        self.tally.grants += 1;
        let book = &mut self.hosts[host];
        book.lens.insert(range.end - range.start, name);
        if let Some(piece) = book.memory.at_mut(range.start) {
            piece.grants.push(name);
        }
        if book.grants.insert(name, grant).is_some() {
            self.fail(
                "r4_names",
                format!("engine {host}: {id:?} was given out twice"),
            );
        }
    }

    /// Its owner takes it back.
    pub fn revoked_by_owner(&mut self, host: usize, lcore: LcoreId, id: GrantId) {
        let now_ns = self.hosts[host].now_ns;
        if let Some(grant) = self.hosts[host].grants.get_mut(&(lcore, id)) {
            grant.retired_ns.get_or_insert(now_ns);
        }
    }

    /// A holder hears of a grant. What it holds is named by its owner's engine and its length.
    pub fn imported(&mut self, host: usize, holder: ContextId, import: &Import) {
        let owner = self.remote(host, &import.owner);
        let Some(name) = self.hosts[owner.host].lens.get(&import.len).copied() else {
            // Of a grant that has ended since, or of an earlier life.
            return;
        };
        let who = self.who(host, holder);
        let grant = self.hosts[owner.host]
            .grants
            .get_mut(&name)
            .expect("named by its length");
        if grant.owner != owner.id || grant.holder != who {
            return;
        }
        let again = grant.holding != Holding::Nothing;
        grant.holding = Holding::Live(import.id);
        if again {
            self.fail("r7_grants", format!("engine {host}: {import:?} came twice"));
        }
        let at = (owner.host, name.0, name.1);
        self.hosts[host]
            .imports
            .insert((holder.lcore, import.id), at);
    }

    pub fn import_revoked(&mut self, host: usize, holder: ContextId, import: ImportId) {
        if let Some(grant) = self.grant_of(host, holder.lcore, import) {
            grant.holding = Holding::Revoked;
        }
    }

    /// Whether the holder has the import of a grant, and was not told that it is dead.
    pub(super) fn is_held(&mut self, host: usize, lcore: LcoreId, import: ImportId) -> bool {
        let grant = self.grant_of(host, lcore, import);
        grant.is_some_and(|grant| grant.holding == Holding::Live(import))
    }

    fn grant_of(
        &mut self,
        host: usize,
        lcore: LcoreId,
        import: ImportId,
    ) -> Option<&mut GrantBook> {
        let (owner, at, id) = *self.hosts[host].imports.get(&(lcore, import))?;
        self.hosts[owner].grants.get_mut(&(at, id))
    }

    /// A place for a write of `len` bytes, a multiple of 8, that nothing else will touch; enters the write.
    pub fn place(
        &mut self,
        host: usize,
        lcore: LcoreId,
        import: ImportId,
        len: u64,
        serial: u64,
    ) -> Option<u64> {
        let grant = self.grant_of(host, lcore, import)?;
        let bytes = grant.range.end - grant.range.start;
        let offset = grant.cursor;
        if offset + len > bytes || grant.end != GrantEnd::Open {
            return None;
        }
        grant.cursor += len;
        grant.stamps.push(Stamp {
            serial,
            offset,
            len,
            status: None,
            found: None,
        });
        Some(offset)
    }

    /// A write that was entered was refused.
    pub fn unplace(&mut self, host: usize, lcore: LcoreId, import: ImportId, serial: u64) {
        if let Some(grant) = self.grant_of(host, lcore, import) {
            grant.stamps.retain(|stamp| stamp.serial != serial);
        }
    }

    /// How a write ended, beside what was found of it.
    pub(super) fn stamped(
        &mut self,
        host: usize,
        lcore: LcoreId,
        import: ImportId,
        serial: u64,
        status: Status,
    ) {
        let Some(grant) = self.grant_of(host, lcore, import) else {
            return;
        };
        let Some(stamp) = grant.stamps.iter_mut().find(|stamp| stamp.serial == serial) else {
            return;
        };
        stamp.status = Some(status);
        let stamp = *stamp;
        self.judge_stamp(&stamp);
    }

    pub(super) fn added(&mut self, host: usize, lcore: LcoreId, import: ImportId, status: Status) {
        if let Some(grant) = self.grant_of(host, lcore, import) {
            match status {
                Status::Ok => grant.adds_ok += 1,
                _ if status.surely_not_executed() => {}
                _ => grant.adds_maybe += 1,
            }
        }
    }

    fn judge_stamp(&mut self, stamp: &Stamp) {
        let (Some(status), Some(found)) = (stamp.status, stamp.found) else {
            return;
        };
        let fits = match status {
            Status::Ok => found == Presence::All,
            _ if status.surely_not_executed() => found == Presence::Nothing,
            _ => true,
        };
        if !fits {
            self.fail(
                "fates",
                format!("a write ended as {status:?}, and is found: {stamp:?}"),
            );
        }
    }

    /// A grant's owner hears of its end, and still has its buffer.
    pub fn zapped(&mut self, host: usize, owner: ContextId, id: GrantId, buf: Option<&Buf>) {
        self.absorb();
        self.told(&(host, owner, id));
        self.tally.zapped += 1;
        let name = (owner.lcore, id);
        let Some(grant) = self.end_grant(host, owner, id, GrantEnd::Zapped) else {
            return;
        };
        let range = grant.range.clone();
        let open = self.open_overlapping(host, &range);
        let honoured = self.ledger(host).live_keys(range.clone());
        if honoured > open {
            self.fail("r3_zapped", format!("engine {host}: {id:?} of {owner} is zapped, but {honoured} keys of its bytes are honoured, and {open} grants have not ended"));
        }
        self.judge_fence(host, name);
        if let Some(buf) = buf {
            self.look_at_stamps(host, name, buf);
        }
    }

    /// The counter has what was added for sure, and no more than may have been.
    fn judge_adds(&mut self, host: usize, name: (LcoreId, GrantId), buf: &Buf) {
        let grant = &self.hosts[host].grants[&name];
        let holder = &self.hosts[grant.holder.host];
        if holder.life != grant.holder.life {
            return;
        }
        let of_grant = (host, name.0, name.1);
        let open = holder.ops.iter().filter(|((by, _), op)| match op.about {
            About::Add(import) => holder.imports.get(&(by.lcore, import)) == Some(&of_grant),
            _ => false,
        });
        let sure = grant.adds_ok;
        // What a context that has ended had under way was not told to anybody.
        let ended = holder
            .contexts
            .get(&grant.holder.id)
            .is_none_or(|book| book.ending != Ending::Lives);
        let most = if ended {
            u64::MAX
        } else {
            sure + grant.adds_maybe + open.count() as u64
        };
        let first = (grant.range.start - buf.address()) as usize;
        let found = buf.dma().load_u64(first).unwrap_or(0);
        if found < sure || found > most {
            self.fail(
                "fates",
                format!("engine {host}: {name:?} counts {found}, {sure} to {most} were added"),
            );
        }
    }

    /// Step 2: where nobody is late, the holder has waited for what it had in flight before it let the key go.
    fn judge_fence(&mut self, host: usize, name: (LcoreId, GrantId)) {
        let grant = &self.hosts[host].grants[&name];
        let (holder, range) = (grant.holder, grant.range.clone());
        if !self.is_gentle || self.hosts[holder.host].life != holder.life {
            return;
        }
        let open = self.ledger(holder.host).open_remote(range);
        if open > 0 {
            self.fail(
                "r2_fence",
                format!("engine {host}: {name:?} is zapped, and {open} requests of {holder:?} by its key are not proven ended"),
            );
        }
    }

    /// What is found of each write when no more can come.
    fn look_at_stamps(&mut self, host: usize, name: (LcoreId, GrantId), buf: &Buf) {
        self.judge_adds(host, name, buf);
        let grant = self.hosts[host]
            .grants
            .get_mut(&name)
            .expect("it has ended just now");
        let first = grant.range.start;
        for stamp in &mut grant.stamps {
            stamp.found = Some(presence(buf, first, stamp));
        }
        let stamps = grant.stamps.clone();
        for stamp in &stamps {
            self.judge_stamp(stamp);
        }
    }

    /// The owner hears that a write with this number has landed: its bytes are there.
    pub fn landed(
        &mut self,
        host: usize,
        owner: ContextId,
        id: GrantId,
        immediate: u32,
        buf: Option<&Buf>,
    ) {
        let (Some(buf), Some(grant)) = (buf, self.hosts[host].grants.get(&(owner.lcore, id)))
        else {
            return;
        };
        let Some(stamp) = grant
            .stamps
            .iter()
            .find(|stamp| stamp.serial as u32 == immediate)
            .copied()
        else {
            if !self.is_engine(grant.holder.host) {
                return;
            }
            return self.fail(
                "order",
                format!("engine {host}: {owner} hears of number {immediate}, which nobody wrote"),
            );
        };
        let found = presence(buf, grant.range.start, &stamp);
        if found != Presence::All {
            self.fail("order", format!("engine {host}: {owner} hears that {stamp:?} has landed, and finds {found:?} of it"));
        }
    }

    pub fn grant_quarantined(&mut self, host: usize, owner: ContextId, id: GrantId) {
        self.absorb();
        self.tally.grants_quarantined += 1;
        if self.is_gentle {
            self.fail(
                "r5_gentle",
                format!("engine {host}: {id:?} of {owner} is in quarantine"),
            );
        }
        self.end_grant(host, owner, id, GrantEnd::Quarantined);
    }

    /// R7: its one end.
    fn end_grant(
        &mut self,
        host: usize,
        owner: ContextId,
        id: GrantId,
        end: GrantEnd,
    ) -> Option<&mut GrantBook> {
        let name = (owner.lcore, id);
        let now_ns = self.hosts[host].now_ns;
        // A batch is sealed at its interval's end, or when an epoch before it has ended and left its place.
        let bound_ns = 2 * self.hosts[host].bound_ns + self.timeouts.flush_interval_ns + SLACK_NS;
        let known = self.hosts[host]
            .grants
            .get(&name)
            .map(|grant| (grant.end, grant.retired_ns, grant.range.clone()));
        let Some((GrantEnd::Open, retired_ns, range)) = known else {
            self.fail(
                "r7_grants",
                format!("engine {host}: {id:?} of {owner} ended as {end:?}, and was {known:?}"),
            );
            return None;
        };
        if let Some(since_ns) = retired_ns
            && since_ns > self.hosts[host].disturbed_ns
            && now_ns - since_ns > bound_ns
        {
            self.fail(
                "r6_bound",
                format!(
                    "engine {host}: {id:?} of {owner} took {} ns, and may take {bound_ns}",
                    now_ns - since_ns
                ),
            );
        }
        let book = &mut self.hosts[host];
        book.lens.remove(&(range.end - range.start));
        if end == GrantEnd::Zapped
            && let Some(piece) = book.memory.at_mut(range.start)
        {
            piece.grants.retain(|grant| *grant != name);
        }
        let grant = book.grants.get_mut(&name)?;
        grant.end = end;
        Some(grant)
    }

    /// Grants of those bytes whose end was not told, and those in quarantine.
    fn open_overlapping(&self, host: usize, range: &Range<u64>) -> usize {
        let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        let open = self.hosts[host].grants.values();
        open.filter(|grant| {
            matches!(grant.end, GrantEnd::Open | GrantEnd::Quarantined) && overlaps(&grant.range)
        })
        .count()
    }

    /// A flush is asked for: all that was retired before it, whoever did.
    pub fn flushing(&mut self, host: usize, by: ContextId, token: u64) {
        let retired = self.hosts[host].grants.iter();
        let retired =
            retired.filter(|(_, grant)| grant.end == GrantEnd::Open && grant.retired_ns.is_some());
        let captured = retired.map(|(name, _)| *name).collect();
        self.hosts[host].flushes.insert((by, token), captured);
    }

    /// R3: what it captured has ended, but for what is in quarantine.
    pub fn flushed(&mut self, host: usize, by: ContextId, token: u64, quarantined: u32) {
        self.absorb();
        self.tally.flushes += 1;
        let Some(captured) = self.hosts[host].flushes.remove(&(by, token)) else {
            return self.fail(
                "r3_flush",
                format!("engine {host}: {by} hears of a flush that it did not ask for, or twice"),
            );
        };
        let mut left = 0;
        for name in captured {
            let Some(grant) = self.hosts[host].grants.get(&name) else {
                continue;
            };
            let range = grant.range.clone();
            if matches!(grant.end, GrantEnd::Zapped | GrantEnd::Reclaimed) {
                continue;
            }
            // Its owner may hear of its end in a later step; the device must know of it now.
            let others = self.open_overlapping(host, &range) - 1;
            left += u32::from(self.ledger(host).live_keys(range) > others);
        }
        if left > quarantined {
            self.fail("r3_flush", format!("engine {host}: {by} is told that all but {quarantined} ended, but {left} are honoured"));
        }
    }
}

/// What of a write is found in a grant's buffer.
fn presence(buf: &Buf, grant: u64, stamp: &Stamp) -> Presence {
    let first = (grant - buf.address() + stamp.offset) as usize;
    let words = (0..stamp.len as usize / 8).map(|at| buf.dma().load_u64(first + 8 * at));
    let hits = words.filter(|word| *word == Ok(stamp.serial)).count() as u64;
    match hits * 8 {
        0 => Presence::Nothing,
        bytes if bytes == stamp.len => Presence::All,
        _ => Presence::Part,
    }
}
