//! The reclaim protocol (REQUIREMENTS R1 to R8) as a machine without I/O and without a clock.
//!
//! One [`Machine`] per lcore is told facts ([`Event`]) and answers with what became of keys ([`Transition`]) and with
//! orders ([`Action`]). It posts nothing, keeps no time and allocates nothing after construction, so that the engine, the
//! simulator and an exhaustive explorer drive this one piece of code.
//!
//! The engine owns the loop:
//!
//! 1. [`Machine::handle`] one event; count the [`Note`] if it isn't [`Note::Applied`].
//! 2. Act on each of [`Actions::transitions`]: [`Transition::ended`] is the key's proof, in time or late,
//!    [`Transition::quarantined`] its quarantine, [`Transition::freed`] gives window and slot back.
//! 3. Act on each of [`Actions::orders`], then [`Actions::clear`]. Orders that take several poll steps name a strand or a
//!    lane: keys are pulled one by one ([`Machine::next_to_revoke`], [`Machine::next_to_invalidate`],
//!    [`Machine::next_to_dealloc`]) until there are none, so that a step does no more than its budget.
//! 4. With each keep-alive on a lane, name the keys again that [`Machine::next_to_remind`] gives, in as many calls as [`Machine::aside`] counts.
//!
//! ```
//! use keyfence::ids::LaneId;
//! use keyfence::reclaim::{
//!     Action, Actions, Capacity, ContextIx, Event, KeyIx, KeyState, Machine, Note, Scope,
//! };
//!
//! let capacity = Capacity { keys: 4, contexts: 2, lanes: 1, epochs: 2, tickets: 1, flush_watermark: 1 };
//! let mut machine = Machine::new(capacity);
//! let mut out = Actions::new(capacity.bound());
//! let (key, lane) = (KeyIx(0), LaneId(0));
//! let mut step = |event| {
//!     out.clear();
//!     assert_eq!(machine.handle(event, &mut out), Note::Applied);
//!     (out.clone(), machine.clone())
//! };
//!
//! step(Event::Bind { key, context: ContextIx(0), lane, scope: Scope::Queue });
//! step(Event::BindDone { key });
//! let (sealed, machine) = step(Event::Retire { key });
//! let epoch = machine.key_epoch(key).unwrap();
//! assert!(sealed.orders().contains(&Action::Revoke { epoch, lane }));
//! # drop(machine);
//! let (fenced, _) = step(Event::Acked { epoch, lane });
//! assert_eq!(fenced.orders(), [Action::Invalidate { epoch, lane }]);
//! ```

mod action;
mod batch;
mod capacity;
mod chance;
mod context;
mod epoch;
mod event;
mod key;
mod lane;
mod lane_set;
mod list;
mod machine;
mod pairs;
#[cfg(feature = "plant")]
mod planted;
mod proof;
mod pull;
mod query;
mod strand;

pub use action::{Action, Actions, Bound, KeyEnd, Outcome, Quarantine, Transition, Why};
pub use capacity::Capacity;
pub use chance::Chance;
pub use context::ContextState;
pub use event::{Event, Note, Timer};
pub use key::{ContextIx, KeyIx, KeyState, Scope, TicketIx};
pub use lane::LaneState;
pub use lane_set::LaneSet;
pub use machine::{Counts, Machine};
pub use pairs::{Pair, PairSet};
pub use strand::StrandState;
