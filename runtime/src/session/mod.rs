//! How two engines become sure of each other, lane by lane, before anything else is said: the admission of REQUIREMENTS section 5.
//!
//! [`Admission`] is a machine without I/O, clock or randomness; the control side drives it and carries its words. `DESIGN.md` has what is under which MAC,
//! and against whom that protects.

mod admission;
mod mac;
mod pace;
mod refusal;
mod secret;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use admission::{Admission, Event, Known, LaneNames, Order};
pub(crate) use pace::Pace;
pub use pace::PaceMisfit;
pub(crate) use refusal::Refused;
pub use refusal::{AdmissionStats, JoinRefusal};
pub use secret::{Secret, SecretError};
pub(crate) use words::{Request, name_tag};
