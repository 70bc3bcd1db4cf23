//! A ring of records that the newest overwrite: one writer, any number of readers, no lock.

use keyfence_mempool::sync::{AtomicU64, Ordering, fence};

use super::record::{Event, PAYLOAD_WORDS, Record};
use crate::ids::LcoreId;

/// Records of 64 bytes: a sequence number (0 while it is written) and the event.
pub(super) struct Ring {
    slots: Box<[[AtomicU64; 1 + PAYLOAD_WORDS]]>,
    pushed: AtomicU64,
}

impl Ring {
    pub fn new(records: usize) -> Self {
        let records = records.clamp(1, 1 << 30).next_power_of_two();
        Self {
            slots: (0..records)
                .map(|_| core::array::from_fn(|_| AtomicU64::new(0)))
                .collect(),
            pushed: AtomicU64::new(0),
        }
    }

    /// Called by the one writer. `sequence` is at least 1.
    pub fn push(&self, sequence: u64, event: &Event) {
        let number = self.pushed.load(Ordering::Relaxed);
        let slot = &self.slots[number as usize & (self.slots.len() - 1)];
        slot[0].store(0, Ordering::Relaxed);
        // A reader that sees a word stored below also sees the 0.
        fence(Ordering::Release);
        for (cell, word) in slot[1..].iter().zip(event.encode()) {
            cell.store(word, Ordering::Relaxed);
        }
        slot[0].store(sequence, Ordering::Release);
        self.pushed.store(number + 1, Ordering::Release);
    }

    pub fn lost(&self) -> u64 {
        let pushed = self.pushed.load(Ordering::Relaxed);
        pushed.saturating_sub(self.slots.len() as u64)
    }

    pub fn read_into(&self, lcore: Option<LcoreId>, records: &mut Vec<Record>) {
        for slot in &self.slots {
            let sequence = slot[0].load(Ordering::Acquire);
            let words = core::array::from_fn(|at| slot[1 + at].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if sequence == 0 || slot[0].load(Ordering::Relaxed) != sequence {
                continue;
            }
            records.extend(Event::decode(&words).map(|event| Record {
                sequence,
                lcore,
                event,
            }));
        }
    }
}
