//! Gauges against limits: what one context, or one peer, may use (REQUIREMENTS R9).

use crate::limits::{ContextLimits, Limit, LimitError, PeerLimits};

/// A count of something in use, and its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gauge {
    limit: Limit,
    value: u64,
    used: u64,
}

impl Gauge {
    /// Nothing in use, of at most `value`.
    pub const fn new(limit: Limit, value: u64) -> Self {
        Self {
            limit,
            value,
            used: 0,
        }
    }

    /// Whether `amount` more would fit; the error names the limit that stands in the way.
    pub const fn admits(&self, amount: u64) -> Result<(), LimitError> {
        self.limit.admit(self.value, self.used, amount)
    }

    /// Whether `amount` more fits.
    #[inline]
    pub const fn fits(&self, amount: u64) -> bool {
        // In use is never more than the limit.
        amount <= self.value - self.used
    }

    /// Adds `amount`, which fits.
    #[inline]
    pub fn add(&mut self, amount: u64) {
        debug_assert!(self.fits(amount));
        self.used += amount;
    }

    /// Takes `amount`, or says which limit stands in the way and changes nothing.
    pub fn take(&mut self, amount: u64) -> Result<(), LimitError> {
        self.admits(amount)?;
        self.used += amount;
        Ok(())
    }

    /// Gives `amount` back.
    #[inline]
    pub fn give(&mut self, amount: u64) {
        assert!(
            amount <= self.used,
            "R7: {} gives back {amount} of {} in use",
            self.limit,
            self.used
        );
        self.used -= amount;
    }

    /// What is in use.
    pub const fn used(&self) -> u64 {
        self.used
    }
}

/// The gauges of one peer on one lcore.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerQuota {
    /// Grants made to it that are not dead.
    pub grants: Gauge,
    /// Bytes of those not yet proven ended.
    pub exposed_bytes: Gauge,
    /// Its grants held here.
    pub imports: Gauge,
    /// Keys of grants to it that are neither proven ended nor in quarantine.
    pub open_keys: u64,
    /// Keys proven dead whose value it has not acknowledged.
    pub parked_keys: u64,
    /// The most of them.
    pub parked_keys_limit: u64,
}

impl PeerQuota {
    /// The gauges of a new peer.
    pub fn new(limits: &PeerLimits) -> Self {
        Self {
            grants: Gauge::new(Limit::PeerGrants, limits.grants.into()),
            exposed_bytes: Gauge::new(Limit::PeerExposedBytes, limits.exposed_bytes),
            imports: Gauge::new(Limit::PeerImports, limits.imports.into()),
            open_keys: 0,
            parked_keys: 0,
            parked_keys_limit: limits.parked_keys.into(),
        }
    }
}

/// The gauges of one context.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quota {
    /// Grants not yet proven ended.
    pub grants: Gauge,
    /// Imports held.
    pub imports: Gauge,
    /// Bytes opened by grants.
    pub exposed_bytes: Gauge,
    /// Operations submitted and not completed.
    pub ops: Gauge,
    /// Their bytes.
    pub bytes: Gauge,
}

impl Quota {
    /// The gauges of a new context.
    pub fn new(limits: &ContextLimits) -> Self {
        Self {
            grants: Gauge::new(Limit::ContextGrants, limits.grants.into()),
            imports: Gauge::new(Limit::ContextImports, limits.imports.into()),
            exposed_bytes: Gauge::new(Limit::ContextExposedBytes, limits.exposed_bytes),
            ops: Gauge::new(Limit::ContextOpsInFlight, limits.ops_in_flight.into()),
            bytes: Gauge::new(Limit::ContextBytesInFlight, limits.bytes_in_flight),
        }
    }

    /// Whether nothing is in use.
    pub fn is_at_rest(&self) -> bool {
        [
            self.grants,
            self.imports,
            self.exposed_bytes,
            self.ops,
            self.bytes,
        ]
        .iter()
        .all(|gauge| gauge.used() == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r9_past_a_limit_the_error_names_it_and_nothing_changes() {
        let mut gauge = Gauge::new(Limit::ContextGrants, 2);
        gauge.take(2).unwrap();
        let refused = gauge.take(1).unwrap_err();
        assert!(gauge.fits(0) && !gauge.fits(1));
        assert_eq!(
            (refused.limit, refused.value, refused.in_use),
            (Limit::ContextGrants, 2, 2)
        );
        gauge.give(2);
        gauge.take(2).unwrap();
        assert!(gauge.take(u64::MAX).is_err(), "an overflow is a refusal");
    }
}
