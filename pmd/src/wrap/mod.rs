//! Decorators: each is itself a [`Device`](crate::Device) over another one, so every driver can be watched, checked and made to
//! misbehave by the same code.
//!
//! | decorator | what it does | changes what the caller sees |
//! | --- | --- | --- |
//! | [`trace::Trace`] | records every post, completion and control call | no |
//! | [`check::Check`] | keeps books of live keys and open work, and judges the device by its contract | no |
//! | [`fault::Fault`] | misbehaves as a real device may, from a plan | within the contract or the known faults of adapters |
//! | [`wrong::Wrong`] | breaks one rule of the contract | against the contract: the conformance suite must reject it |
//!
//! They stack: `Trace<Check<Fault<D>>>` is a device.

pub mod check;
pub mod fault;
pub mod trace;
pub mod wrong;

#[cfg(test)]
mod script;
