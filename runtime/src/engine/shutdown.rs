//! The end of all contexts of an lcore, spread over steps: bystanders' work on other engines goes on meanwhile (R5).

use keyfence_pmd::DataPath;

use crate::context::state::Phase;
use crate::engine::command::ToControl;
use crate::engine::lcore::Lcore;

/// Slots of contexts closed in one step. The cordon of each costs what the context has.
const CLOSES_A_STEP: u16 = 8;

/// Slots looked at in one step for whether they are at rest.
const LOOKS_A_STEP: u16 = 64;

/// How far the end of all contexts is. No context is opened from its beginning on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shutdown {
    /// Not asked for.
    None,
    /// Contexts are being closed, from this slot on.
    Closing { next: u16 },
    /// All are closed; those before this slot are reclaimed or in quarantine.
    Waiting { at: u16 },
    /// All are, and the control side knows.
    Told,
}

impl<P: DataPath> Lcore<P> {
    /// Closes the next few contexts; whether there were any.
    #[inline]
    pub(super) fn close_some(&mut self) -> bool {
        match self.shutdown {
            Shutdown::Closing { next } => self.close_from(next),
            _ => false,
        }
    }

    fn close_from(&mut self, next: u16) -> bool {
        let slots = self.core.contexts.capacity();
        let end = next.saturating_add(CLOSES_A_STEP).min(slots);
        for slot in next..end {
            self.core.close(slot);
        }
        self.shutdown = if end == slots {
            Shutdown::Waiting { at: 0 }
        } else {
            Shutdown::Closing { next: end }
        };
        true
    }

    /// Tells the control side, once, that no context is left. A slot at rest stays so, since none is opened.
    #[inline]
    pub(super) fn tell_all_closed(&mut self) {
        if let Shutdown::Waiting { at } = self.shutdown {
            self.look_for_the_last(at);
        }
    }

    fn look_for_the_last(&mut self, at: u16) {
        let slots = self.core.contexts.capacity();
        let end = at.saturating_add(LOOKS_A_STEP).min(slots);
        let at_rest = |slot: &u16| {
            let phase = self.core.contexts.get(*slot).phase();
            matches!(phase, Phase::Free | Phase::Quarantined)
        };
        let at = (at..end).find(|slot| !at_rest(slot)).unwrap_or(end);
        self.shutdown = Shutdown::Waiting { at };
        if at == slots {
            self.shutdown = Shutdown::Told;
            self.core.outbox.push(ToControl::AllClosed);
        }
    }
}
