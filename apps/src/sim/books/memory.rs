//! Whose bytes are whose, and who may touch them (R1, R12).

use std::collections::BTreeMap;
use std::ops::Range;

use keyfence::ids::{ContextId, GrantId, LcoreId};
use keyfence::pmd::sim::{Access, AccessKey};
use keyfence::pmd::{QpId, Rkey};

use super::grants::{GrantBook, GrantEnd};
use super::{Books, HostBook};

/// The buffers that contexts have had, by their first address.
#[derive(Default)]
pub struct Memory {
    pieces: BTreeMap<u64, Piece>,
}

/// One buffer.
pub struct Piece {
    pub len: u64,
    /// `None` when its last one was reclaimed, until another gets it.
    pub owner: Option<ContextId>,
    /// Grants of it whose end its owner was not told.
    pub grants: Vec<(LcoreId, GrantId)>,
}

impl Memory {
    pub fn at(&self, address: u64) -> Option<(u64, &Piece)> {
        let (start, piece) = self.pieces.range(..=address).next_back()?;
        (address < start + piece.len).then_some((*start, piece))
    }

    pub fn at_mut(&mut self, address: u64) -> Option<&mut Piece> {
        let (start, piece) = self.pieces.range_mut(..=address).next_back()?;
        (address < start + piece.len).then_some(piece)
    }

    pub fn of(&self, owner: ContextId) -> Vec<Range<u64>> {
        let mine = self
            .pieces
            .iter()
            .filter(|(_, piece)| piece.owner == Some(owner));
        mine.map(|(start, piece)| *start..start + piece.len)
            .collect()
    }

    pub fn free(&mut self, start: u64) {
        if let Some(piece) = self.pieces.get_mut(&start) {
            piece.owner = None;
            piece.grants.clear();
        }
    }
}

impl GrantBook {
    /// Whether the grant, which its owner was not told to have ended, opens the bytes.
    fn opens(&self, range: &Range<u64>, is_write: bool, is_exact: bool) -> bool {
        let stands = matches!(self.end, GrantEnd::Open | GrantEnd::Quarantined);
        let covers = self.range.start <= range.start && range.end <= self.range.end;
        let allowed = if is_write {
            self.rights.write || self.rights.atomic
        } else {
            self.rights.read || self.rights.atomic
        };
        stands && allowed && (covers || !is_exact)
    }
}

impl HostBook {
    /// Whether some grant of a buffer opens the bytes: a region's key is not known to the books.
    fn some_opens(&self, piece: &Piece, opens: impl Fn(&GrantBook) -> bool) -> bool {
        let mut grants = piece.grants.iter().filter_map(|id| self.grants.get(id));
        grants.any(opens)
    }

    /// Whether the grant opens the bytes for which this very key was bound last.
    fn key_opens(&self, qp: QpId, rkey: Rkey, opens: impl Fn(&GrantBook) -> bool) -> bool {
        let named = self.keys.get(&(qp, rkey));
        named
            .and_then(|name| self.grants.get(name))
            .is_some_and(opens)
    }
}

impl Books {
    pub(super) fn judge_access(&mut self, access: &Access) {
        let (host, life) = self.adapters[access.adapter as usize];
        let book = &self.hosts[host];
        if book.life != life {
            // The memory of a process that is gone.
            return;
        }
        let range = access.address..access.address + access.len;
        let found = book.memory.at(access.address);
        let wrong = match (access.key, found) {
            // The runtime's own memory: frames, receives, former values.
            (AccessKey::Local(_), None) => None,
            (AccessKey::Local(_), Some((_, piece))) if piece.owner.is_some() => None,
            (AccessKey::Local(_), Some(_)) => Some("r1_own_operation_after_reclaim"),
            (AccessKey::Remote(_), None) => Some("r12_memory_that_no_context_had"),
            (AccessKey::Remote(rkey), Some((_, piece))) => {
                let opens = |grant: &GrantBook| grant.opens(&range, access.is_write, self.is_exact);
                let opened = if self.windows {
                    book.key_opens(access.qp, rkey, opens)
                } else {
                    book.some_opens(piece, opens)
                };
                (!opened).then_some("r1_no_late_access")
            }
        };
        if let Some(check) = wrong {
            let what = format!("engine {host}: {access:?}");
            self.fail(check, what);
        }
    }

    /// A context gets a buffer: nobody else may reach it any more (R1, R4).
    pub fn allocated(&mut self, host: usize, owner: ContextId, range: Range<u64>) {
        self.absorb();
        if let Some(key) = self.ledger(host).first_live_key(range.clone()) {
            self.fail(
                "r1_reuse",
                format!("engine {host}: {owner} gets a buffer that {key}"),
            );
        }
        if let Some(open) = self.ledger(host).first_open_work(range.clone()) {
            self.fail(
                "r1_reuse",
                format!("engine {host}: {owner} gets a buffer that {open}"),
            );
        }
        let book = &mut self.hosts[host];
        if let Some((_, piece)) = book.memory.at(range.start) {
            for id in &piece.grants {
                if let Some(grant) = book.grants.get(id)
                    && grant.end == GrantEnd::Open
                {
                    // In order only if its owner's end is told before the step is over.
                    book.suspects.push((grant.owner, *id));
                }
            }
        }
        let piece = Piece {
            len: range.end - range.start,
            owner: Some(owner),
            grants: Vec::new(),
        };
        self.hosts[host].memory.pieces.insert(range.start, piece);
    }
}
