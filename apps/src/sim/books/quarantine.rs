//! A quarantine says how much (R2): no less than the device may still honour.

use keyfence::ids::{ContextId, RemoteContext};

use super::{Books, HostBook, Who};

/// How much a notice says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    pub keys: u32,
    pub bytes: u64,
}

impl Told {
    const NOTHING: Self = Self { keys: 0, bytes: 0 };
}

impl Books {
    /// What of an ended context's memory is not proven: keys, and the bytes of the buffers that they or its own operations may touch.
    fn unproven(&self, who: Who) -> Told {
        let (mut keys, mut bytes) = (0, 0);
        let ledger = self.ledger(who.host);
        for range in self.hosts[who.host].memory.of(who.id) {
            let live = ledger.live_keys(range.clone()) as u32;
            if live > 0 || ledger.open_work(range.clone()) > 0 {
                bytes += range.end - range.start;
            }
            keys += live;
        }
        Told { keys, bytes }
    }

    fn judge_quarantine(&mut self, hears: usize, who: Who, told: Told) {
        let left = self.unproven(who);
        if left.keys > told.keys || left.bytes > told.bytes {
            self.fail(
                "r2_quarantine",
                format!("engine {hears}: of {who:?} it is said that {told:?} are in quarantine, and {left:?} are honoured"),
            );
        }
    }

    /// The engine's owner is told.
    pub(super) fn quarantine_told(&mut self, host: usize, id: ContextId, told: Told) {
        self.judge_quarantine(host, self.who(host, id), told);
        if let Some(context) = self.hosts[host].contexts.get_mut(&id) {
            context.quarantine = Some(told);
        }
    }

    /// A context of another engine is told as much as that engine's owner was.
    pub(super) fn gone_told(&mut self, host: usize, remote: &RemoteContext, told: Told) {
        let who = self.remote(host, remote);
        let book = &self.hosts[who.host];
        let Some(said) = book.contexts.get(&who.id).and_then(|book| book.quarantine) else {
            return;
        };
        // After a repair it is said again that a context has ended, and not what its end had left.
        let may_be_repaired = self.hosts[host].rebuilds > 0 && book.rebuilds > 0;
        if may_be_repaired || !self.sees_present_life(host, remote.peer) {
            return;
        }
        self.tally.quarantines_heard += 1;
        // Who asks for it later, as the last handle has come back, hears what is left then.
        let none_left = told == Told::NOTHING && said.keys == 0 && self.unproven(who) == told;
        if told != said && !none_left && !book.reuses_slot_of(who.id) {
            self.fail(
                "r2_quarantine",
                format!("engine {host}: {who:?} left {said:?} in quarantine, and is said to have left {told:?}"),
            );
        }
        self.judge_quarantine(host, who, told);
    }
}

impl HostBook {
    /// Whether a later context has its slot: then nothing of it is left.
    fn reuses_slot_of(&self, id: ContextId) -> bool {
        let later = |other: &ContextId| {
            (other.lcore, other.slot) == (id.lcore, id.slot) && other.generation > id.generation
        };
        self.contexts.keys().any(later)
    }
}
