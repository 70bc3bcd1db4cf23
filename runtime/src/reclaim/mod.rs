//! The reclaim protocol (REQUIREMENTS R1 to R8) as a machine without I/O and without a clock.
//!
//! One [`Machine`] per lcore is told facts ([`Event`]) and answers with orders ([`Action`]) and with what became of keys
//! ([`Transition`]). It posts nothing, keeps no time and allocates nothing after construction, so that the engine, the
//! simulator and an exhaustive explorer drive this one piece of code.

mod action;
mod batch;
mod capacity;
mod context;
mod epoch;
mod event;
mod key;
mod lane;
mod lane_set;
mod list;
mod machine;
#[cfg(feature = "plant")]
mod planted;
mod proof;
mod strand;

pub use action::{Action, Actions, Bound, KeyEnd, Outcome, Quarantine, Transition, Why};
pub use capacity::Capacity;
pub use context::ContextState;
pub use event::{Event, Note, Timer};
pub use key::{ContextIx, KeyIx, KeyState, Scope, TicketIx};
pub use lane::LaneState;
pub use lane_set::LaneSet;
pub use machine::{Counts, Machine};
pub use strand::StrandState;
