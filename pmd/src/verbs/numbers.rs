//! Numbers of objects: a slot, and above it how often the slot was used.

use std::collections::VecDeque;

use crate::error::ControlError;

/// Hands out numbers. The slot that was free longest is taken first.
#[derive(Debug)]
pub(crate) struct Numbers {
    free: VecDeque<(u32, u32)>,
    bits: u32,
    limit: u32,
    what: &'static str,
    once: bool,
}

impl Numbers {
    /// Numbers for up to `limit` objects at a time. With `once` a number is used once in a device's life.
    pub(crate) fn new(what: &'static str, limit: u32, once: bool) -> Self {
        Self {
            free: (0..limit).map(|slot| (slot, 1)).collect(),
            bits: limit.next_power_of_two().trailing_zeros(),
            limit,
            what,
            once,
        }
    }

    pub(crate) fn take(&mut self) -> Result<u32, ControlError> {
        let (slot, use_count) = self.free.pop_front().ok_or(ControlError::Exhausted {
            what: self.what,
            limit: u64::from(self.limit),
        })?;
        Ok(use_count << self.bits | slot)
    }

    pub(crate) fn give_back(&mut self, number: u32) {
        let slot = slot_of(number, self.limit) as u32;
        let most = u32::MAX >> self.bits;
        let mut use_count = (number >> self.bits) + 1;
        if use_count >= most {
            if self.once {
                // Its numbers are used up.
                return;
            }
            use_count = 1;
        }
        self.free.push_back((slot, use_count));
    }
}

/// The slot of a number, of which up to `limit` are in use at a time.
#[inline]
pub(crate) fn slot_of(number: u32, limit: u32) -> usize {
    number as usize & (limit.next_power_of_two() as usize - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_comes_back_late_or_never() {
        let mut numbers = Numbers::new("things", 3, true);
        let first = numbers.take().unwrap();
        numbers.take().unwrap();
        numbers.take().unwrap();
        assert!(matches!(
            numbers.take(),
            Err(ControlError::Exhausted { limit: 3, .. })
        ));
        numbers.give_back(first);
        let again = numbers.take().unwrap();
        assert_ne!(again, first);
        assert_eq!(slot_of(again, 3), slot_of(first, 3));
    }

    #[test]
    fn a_slot_whose_numbers_are_used_up_is_retired() {
        let mut numbers = Numbers::new("things", 1, true);
        numbers.give_back(u32::MAX - 1);
        numbers.take().unwrap();
        assert!(numbers.take().is_err());
    }
}
