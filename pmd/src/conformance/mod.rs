//! The device contract as a suite, generic over the device. Any driver runs it: in a test, in a guest, from `keyfence probe`.
//!
//! Each test gets two fresh devices that can reach each other ([`Setup`]), and says what the contract demands of them. A test that
//! needs a capability that [`Caps`] denies is a [`Verdict::Skip`], never a pass. A failed expectation is a [`Verdict::Fail`] with its
//! text; nothing here panics. Time is counted in polls.
//!
//! The suite keeps the caller's part of the contract: it invalidates no key that is not live (that panics a host with Soft-RoCE), unless
//! the device says that it stands it.

mod bench;
mod boundary;
mod connect;
mod domains;
mod errors;
mod events;
mod flush;
mod gone;
mod grants;
pub(crate) mod in_flight;
mod invalidate;
mod keys;
mod limits;
mod memory;
mod order;
mod own;
mod proof;
mod setup;
mod windows;
mod zero;

use core::fmt;

pub use setup::{ARENA_BYTES, Setup};

use self::bench::Bench;
use crate::device::{Caps, Device};

/// One test of the contract.
pub struct Test<D: Device> {
    /// Its name; unique in the suite.
    pub name: &'static str,
    needs: &'static [Need],
    body: fn(&mut Bench<D>) -> Outcome,
}

/// How one test went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The test's name.
    pub name: &'static str,
    /// How it went.
    pub verdict: Verdict,
    /// What the test saw, if that says how sharp it was; else empty.
    pub note: String,
}

/// Pass, fail or skip.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The device did as the contract says.
    Pass,
    /// It did not; the text says what was expected and what came.
    Fail(String),
    /// Its `Caps` say that it cannot do what the test is about.
    Skip(Need),
}

/// A capability that a test needs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Need {
    /// `Caps::windows`.
    Windows,
    /// `Caps::window_bounds`.
    WindowBounds,
    /// `Caps::window_scope`.
    WindowScope,
    /// `Caps::atomics`.
    Atomics,
    /// `Caps::window_atomics`.
    WindowAtomics,
    /// `Caps::tag_bits` is 8.
    Tags,
    /// `Caps::chain_stops`.
    ChainStops,
    /// `Caps::dealloc_fences`.
    DeallocFences,
    /// `Caps::invalidate_checks`.
    InvalidateChecks,
    /// `Caps::max_inline_bytes` is not 0.
    Inline,
    /// `Caps::max_sge` is at least 2.
    Gather,
    /// `Caps::max_operation_bytes` can be exceeded by one request.
    OperationLimit,
    /// `Caps::max_windows` is small enough to use them all up.
    FewWindows,
}

/// What a test's body ends with.
type Outcome = Result<(), Failure>;

/// An expectation that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Failure(String);

/// Every test, in the order of running.
#[must_use]
pub fn all<D: Device>() -> Vec<Test<D>> {
    [
        order::tests(),
        zero::tests(),
        flush::tests(),
        boundary::tests(),
        keys::tests(),
        grants::tests(),
        domains::tests(),
        windows::tests(),
        invalidate::tests(),
        proof::tests(),
        own::tests(),
        limits::tests(),
        errors::tests(),
        gone::tests(),
        events::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

impl<D: Device> Test<D> {
    /// Runs the test on two fresh devices.
    pub fn run(&self, setup: Setup<D>) -> Report {
        let missing = self.needs.iter().find(|need| !need.is_met(setup.a.caps()));
        if let Some(need) = missing {
            return self.report(Verdict::Skip(*need), String::new());
        }
        let mut bench = match Bench::new(setup) {
            Ok(bench) => bench,
            Err(Failure(text)) => return self.report(Verdict::Fail(text), String::new()),
        };
        let verdict = match (self.body)(&mut bench) {
            Ok(()) => Verdict::Pass,
            Err(Failure(text)) => Verdict::Fail(text),
        };
        self.report(verdict, bench.take_note())
    }

    fn report(&self, verdict: Verdict, note: String) -> Report {
        Report {
            name: self.name,
            verdict,
            note,
        }
    }
}

/// Runs every test, each on devices that `setup` makes anew.
///
/// # Errors
/// The text of a `setup` that failed: no test says anything then.
pub fn run<D: Device>(
    setup: &mut dyn FnMut() -> Result<Setup<D>, String>,
) -> Result<Vec<Report>, String> {
    all::<D>()
        .iter()
        .map(|test| Ok(test.run(setup()?)))
        .collect()
}

impl Need {
    fn is_met(self, caps: &Caps) -> bool {
        match self {
            Self::Windows => caps.windows,
            Self::WindowBounds => caps.windows && caps.window_bounds,
            Self::WindowScope => caps.windows && caps.window_scope,
            Self::Atomics => caps.atomics,
            Self::WindowAtomics => caps.windows && caps.atomics && caps.window_atomics,
            Self::Tags => caps.windows && caps.tag_bits == 8,
            Self::ChainStops => caps.windows && caps.chain_stops,
            Self::DeallocFences => caps.windows && caps.dealloc_fences,
            Self::InvalidateChecks => caps.windows && caps.invalidate_checks,
            Self::Inline => caps.max_inline_bytes > 0,
            Self::Gather => caps.max_sge >= 2,
            Self::OperationLimit => caps.max_operation_bytes < u64::from(u32::MAX),
            Self::FewWindows => caps.windows && caps.max_windows <= 1 << 16,
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Windows => "windows",
            Self::WindowBounds => "window_bounds",
            Self::WindowScope => "window_scope",
            Self::Atomics => "atomics",
            Self::WindowAtomics => "window_atomics",
            Self::Tags => "tag_bits of 8",
            Self::ChainStops => "chain_stops",
            Self::DeallocFences => "dealloc_fences",
            Self::InvalidateChecks => "invalidate_checks",
            Self::Inline => "max_inline_bytes",
            Self::Gather => "max_sge of 2",
            Self::OperationLimit => "max_operation_bytes below 4 GiB",
            Self::FewWindows => "max_windows of 65,536 or fewer",
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.verdict {
            Verdict::Pass => write!(f, "pass {}", self.name)?,
            Verdict::Fail(text) => write!(f, "FAIL {}: {text}", self.name)?,
            Verdict::Skip(need) => write!(f, "skip {}: device has no {need}", self.name)?,
        }
        match self.note.is_empty() {
            true => Ok(()),
            false => write!(f, " ({})", self.note),
        }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Ends the test with a failure unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::conformance::Failure(format!($($text)+)));
        }
    };
}
use ensure;

/// The module's tests: `tests! { name, name needs [Cap], ... }`.
macro_rules! tests {
    (@needs) => { &[] };
    (@needs $needs:tt) => { &$needs };
    ($($name:ident $(needs $needs:tt)?),* $(,)?) => {
        /// The tests of this module.
        pub(super) fn tests<D: crate::Device>() -> Vec<super::Test<D>> {
            #[allow(unused_imports, reason = "a module without needs names none")]
            use super::Need::*;
            vec![$(super::Test {
                name: stringify!($name),
                needs: super::tests!(@needs $($needs)?),
                body: $name,
            }),*]
        }
    };
}
use tests;
