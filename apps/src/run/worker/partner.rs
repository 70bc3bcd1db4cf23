//! The partner: looked up by name, lost, looked up again; and what it grants.

use keyfence::ids::{ImportId, RemoteContext};
use keyfence::{Context, Import, Local};

use super::Worker;
use super::cell::State;
use super::ops::Op;
use super::plan::Role;
use crate::run::board::{DOOMED, HOT, READY};
use crate::run::pattern::{Fill, HEADER_BYTES, Words, identity};

/// How long between two look-ups of a partner that isn't there.
const LOOKUP_NS: u64 = 200_000;

/// Where the search for the partner is.
#[derive(Debug, Default)]
pub struct Lookup {
    asked: bool,
    next_ns: u64,
}

/// How well an import is known.
#[derive(Clone, Copy, Debug)]
pub enum Known {
    /// Not yet.
    New,
    /// Its header is being read.
    Learning,
    /// What its owner has filled it with.
    Fill(Words),
    /// Its header was somebody else's: it is not used.
    Foreign,
}

/// An import.
#[derive(Debug)]
pub struct Use {
    /// It.
    pub import: Import,
    /// What is in it.
    pub known: Known,
    /// Operations by it.
    pub in_flight: u32,
    /// Writes among them.
    pub writes: u32,
    /// It was taken back.
    pub revoked: bool,
    /// Taken back alone, and not with its owner.
    pub alone: bool,
    /// A write was in flight when it was taken back.
    pub counted: bool,
    /// An operation ended as if it had been taken back.
    pub doubt: bool,
}

impl Use {
    /// Whether operations may go by it.
    pub fn is_live(&self) -> bool {
        !self.revoked && matches!(self.known, Known::Fill(_))
    }
}

impl Worker {
    pub(super) fn find_partner(&mut self, cx: &mut Context<'_>) -> bool {
        if self.partner.is_some() || self.lookup.asked || cx.now_ns() < self.lookup.next_ns {
            return false;
        }
        self.lookup.next_ns = cx.now_ns() + LOOKUP_NS;
        let name = &self.board.link.names[1 - self.side];
        let Some(peer) = cx.peer_by_name(name) else {
            return false;
        };
        // One that is refused, for lack of a session or of room, is tried again.
        self.lookup.asked = cx.lookup(peer, &self.board.name_of(self.index), 0).is_ok();
        self.lookup.asked
    }

    pub(super) fn resolved(&mut self, now_ns: u64, context: Option<RemoteContext>) {
        self.lookup.asked = false;
        self.lookup.next_ns = now_ns + LOOKUP_NS;
        if self.partner.is_none()
            && let Some(context) = context
        {
            if let Some((_, why)) = self.lost.filter(|(lost, _)| *lost == context) {
                self.bystander_error(|| format!("{why}, and {context:?} lives"));
            }
            self.partner = Some(context);
            self.partners += 1;
            self.sent = 0;
        }
    }

    pub(super) fn partner_gone(&mut self, context: RemoteContext) {
        if self.partner == Some(context) {
            self.lose_partner("it was said to be gone");
        }
    }

    /// There is none any more, for a reason.
    pub(super) fn lose_partner(&mut self, why: &'static str) {
        self.lost = self.partner.take().map(|partner| (partner, why));
        // No answer comes of a session that is lost.
        self.lookup.asked &= !self.board.is_lossy();
        let member = &self.board.sides[self.side].members[self.index];
        member.clear(READY | HOT);
    }

    pub(super) fn granted(&mut self, import: Import) {
        self.uses.push(Use {
            import,
            known: Known::New,
            in_flight: 0,
            writes: 0,
            revoked: false,
            alone: false,
            counted: false,
            doubt: false,
        });
    }

    pub(super) fn import_revoked(&mut self, now_ns: u64, id: ImportId) {
        let members =
            [self.side, 1 - self.side].map(|side| &self.board.sides[side].members[self.index]);
        members[0].clear(HOT);
        let partner_lives = !members[1].has(DOOMED);
        let Some(at) = self.uses.iter().position(|entry| entry.import.id == id) else {
            return self.bystander_error(|| format!("Revoked({id:?}) of no import"));
        };
        let entry = &mut self.uses[at];
        entry.revoked = true;
        entry.alone = partner_lives && Some(entry.import.owner) == self.partner;
        self.revoked += 1;
        if entry.in_flight > 0 {
            self.recheck_ns = Some(now_ns);
        }
        self.drop_if_done(at);
    }

    /// Forgets an import that was taken back and has no operation left.
    pub(super) fn drop_if_done(&mut self, at: usize) {
        if self.uses[at].revoked && self.uses[at].in_flight == 0 {
            self.uses.swap_remove(at);
        }
    }

    /// An operation that ends as revoked is right only if the event says so too, which comes right behind it.
    pub(super) fn settle_doubts(&mut self) {
        for at in 0..self.uses.len() {
            if self.uses[at].doubt && !self.uses[at].revoked {
                self.uses[at].doubt = false;
                let id = self.uses[at].import.id;
                self.bystander_error(|| {
                    format!("an operation by {id:?} was revoked, and it was not")
                });
            }
        }
    }

    /// Reads the header of a new import: it says what the owner has filled the memory with.
    pub(super) fn learn(&mut self, cx: &mut Context<'_>) -> bool {
        let new = |entry: &super::Use| matches!(entry.known, Known::New) && !entry.revoked;
        let Some(at) = self.uses.iter().position(new) else {
            return false;
        };
        let sink = |cell: &super::Cell| {
            cell.role == Role::Sink && !cell.large && cell.state == State::Ready && cell.busy == 0
        };
        let (Some(sink), Some(token)) = (self.cells.iter().position(sink), self.ops.next_token())
        else {
            return false;
        };
        let import = self.uses[at].import;
        let into = [Local::prefix(&self.cells[sink].buf, HEADER_BYTES)];
        if cx.read(&import, 0, &into, token).is_err() {
            // Revoked, which an event will say; or no room for now.
            return false;
        }
        self.ops.enter(Op {
            import: Some(import.id),
            cell: Some(sink),
            offset: 0,
            len: HEADER_BYTES,
            learns: true,
            number: None,
            era: self.board.wishes.era(),
            start_ns: None,
        });
        self.cells[sink].busy += 1;
        self.uses[at].known = Known::Learning;
        self.uses[at].in_flight += 1;
        true
    }

    /// A new import's header has come.
    pub(super) fn learned(&mut self, at: usize, cell: usize) {
        let mut header = [0; HEADER_BYTES];
        self.cells[cell]
            .buf
            .read_at(0, &mut header)
            .expect("a header fits each buffer");
        let fill = Fill::of_header(header);
        let theirs = self.board.link.engines[1 - self.side];
        let owner = identity(theirs, self.uses[at].import.owner.id);
        if fill.owner == owner {
            self.uses[at].known = Known::Fill(fill.words());
            return;
        }
        self.uses[at].known = Known::Foreign;
        let mut tally = self.board.sides[self.side].tally();
        tally.faults.late_reads += 1;
        let name = &self.name;
        tally.note(|| format!("{name}: memory granted by {owner:#x} holds {fill:?}"));
    }
}
