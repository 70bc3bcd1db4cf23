//! Explicit flushes: of this lcore, and by way of the control side of all others, since a flush captures what anyone has retired (R3).

use crate::engine::command::ToControl;
use crate::engine::state::Core;
use crate::error::FlushError;
use crate::event::Event;
use crate::ids::LcoreId;
use crate::reclaim::{self, TicketIx};

/// Who waits for a ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PendingFlush {
    /// A context here.
    Own {
        /// Its slot.
        context: u16,
        /// The slot's generation.
        generation: u32,
        /// The caller's token.
        token: u64,
        /// Lcores that have not answered, this one included.
        waiting: u16,
        /// Keys that could not be proven ended.
        quarantined: u32,
    },
    /// A context of another lcore.
    For {
        /// That lcore.
        origin: LcoreId,
        /// Its ticket.
        ticket: u16,
    },
}

impl Core {
    pub(super) fn start_flush(&mut self, slot: u16, token: u64) -> Result<(), FlushError> {
        if !self.contexts.get(slot).is_live() {
            return Err(FlushError::ContextClosed);
        }
        let limit = self.flushes.len();
        let pending = PendingFlush::Own {
            context: slot,
            generation: self.contexts.id(slot).generation,
            token,
            waiting: self.lcores,
            quarantined: 0,
        };
        // Half of the tickets are kept for the other lcores.
        let Some(ticket) = self.free_ticket(limit.div_ceil(2)) else {
            return Err(FlushError::TooMany {
                limit: limit.div_ceil(2),
            });
        };
        self.flushes[ticket as usize] = Some(pending);
        if self.lcores > 1 {
            self.outbox.push(ToControl::FlushOthers { ticket });
        }
        self.flushes_to_begin.push(TicketIx(ticket));
        Ok(())
    }

    /// Another lcore's flush. If no ticket is free it waits for one.
    pub(super) fn flush_for(&mut self, origin: LcoreId, ticket: u16) {
        match self.free_ticket(self.flushes.len()) {
            Some(free) => {
                self.flushes[free as usize] = Some(PendingFlush::For { origin, ticket });
                self.flushes_to_begin.push(TicketIx(free));
            }
            None => self.flushes_waiting.push_back((origin, ticket)),
        }
    }

    /// Begins the flushes that were asked for. Called when no context waits for its cordon: a flush captures also what was closed before it in the
    /// same step (R3), which has no epoch until then.
    pub(super) fn begin_flushes(&mut self) {
        while let Some(ticket) = self.flushes_to_begin.pop() {
            self.drive(reclaim::Event::Flush { ticket });
        }
    }

    pub(super) fn flush_ended(&mut self, ticket: TicketIx, quarantined: u32) {
        let pending = self.flushes[ticket.0 as usize].expect("a ticket in use is in the table");
        match pending {
            PendingFlush::Own { .. } => self.flush_part(ticket.0, quarantined),
            PendingFlush::For {
                origin,
                ticket: theirs,
            } => {
                self.flushes[ticket.0 as usize] = None;
                let answer = ToControl::FlushDone {
                    origin,
                    ticket: theirs,
                    quarantined,
                };
                self.outbox.push(answer);
            }
        }
        if let Some((origin, ticket)) = self.flushes_waiting.pop_front() {
            self.flush_for(origin, ticket);
        }
    }

    /// One lcore's part of a flush of a context here has ended.
    pub(super) fn flush_part(&mut self, ticket: u16, part: u32) {
        let Some(PendingFlush::Own {
            context,
            generation,
            token,
            waiting,
            quarantined,
        }) = &mut self.flushes[ticket as usize]
        else {
            unreachable!("a ticket stays until its last part");
        };
        *waiting -= 1;
        *quarantined += part;
        if *waiting > 0 {
            return;
        }
        let (context, generation, token, quarantined) =
            (*context, *generation, *token, *quarantined);
        self.flushes[ticket as usize] = None;
        self.stats.flushes_ended += 1;
        if self.contexts.live(context, generation).is_some() {
            self.tell(context, Event::Flushed { token, quarantined });
        }
    }

    fn free_ticket(&self, below: usize) -> Option<u16> {
        self.flushes[..below]
            .iter()
            .position(Option::is_none)
            .map(|at| at as u16)
    }
}
