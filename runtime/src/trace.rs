//! A bounded ring of what happened to keys, contexts and lanes of one lcore: what a failed check prints.

use core::fmt;

use crate::reclaim::Transition;

/// One record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// When, in the lcore's time.
    pub at_ns: u64,
    /// What.
    pub change: Transition,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Transition {
            key,
            from,
            to,
            epoch,
        } = self.change;
        write!(f, "{} key {} {from:?} -> {to:?}", self.at_ns, key.0)?;
        match epoch {
            Some(epoch) => write!(f, " epoch {}", epoch.0),
            None => Ok(()),
        }
    }
}

/// The last records of one lcore. Overwrites the oldest; allocates nothing after its making.
#[derive(Clone, Debug)]
pub struct Trace {
    ring: Vec<Record>,
    capacity: usize,
    written: u64,
}

impl Trace {
    /// Room for `capacity` records; 0 records nothing.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            ring: Vec::with_capacity(capacity),
            capacity,
            written: 0,
        }
    }

    pub(crate) fn key(&mut self, at_ns: u64, change: &Transition) {
        if self.capacity == 0 {
            return;
        }
        let record = Record {
            at_ns,
            change: *change,
        };
        if self.ring.len() < self.capacity {
            self.ring.push(record);
        } else {
            let at = (self.written % self.capacity as u64) as usize;
            self.ring[at] = record;
        }
        self.written += 1;
    }

    /// Records written, the overwritten ones included.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// The records that are left, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Record> {
        let oldest = if self.ring.len() < self.capacity || self.capacity == 0 {
            0
        } else {
            (self.written % self.capacity as u64) as usize
        };
        self.ring[oldest..].iter().chain(&self.ring[..oldest])
    }
}
