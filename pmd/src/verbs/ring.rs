//! A shadow queue: what a queue of the adapter holds, in the order of posting. The adapter knows a place in it, and nothing of ours.

/// Places are counted modulo 2^31, so that a completion's number has room for what else it says.
const PLACES: u32 = (1 << 31) - 1;

/// A queue of exactly `depth` entries.
#[derive(Debug)]
pub(crate) struct Ring<E> {
    entries: Box<[E]>,
    depth: u32,
    /// Entries ever posted.
    posted: u32,
    /// Entries that are free again: reported, or passed over by a later success.
    done: u32,
    /// In a broken queue: entries that the adapter has ended, at least `done`.
    ended: u32,
    /// A failure is known: all that follow it are flushed.
    broken: bool,
}

impl<E: Copy> Ring<E> {
    pub(crate) fn new(depth: u32, filler: E) -> Self {
        Self {
            entries: vec![filler; depth.next_power_of_two() as usize].into(),
            depth,
            posted: 0,
            done: 0,
            ended: 0,
            broken: false,
        }
    }

    #[inline]
    pub(crate) fn room(&self) -> usize {
        (self.depth - self.len()) as usize
    }

    /// Entries that are not free.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.posted.wrapping_sub(self.done)
    }

    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// The place of the next entry.
    #[inline]
    pub(crate) fn next_place(&self) -> u32 {
        self.posted & PLACES
    }

    /// Adds an entry; the caller has looked for room.
    #[inline]
    pub(crate) fn push(&mut self, entry: E) {
        debug_assert!(self.room() > 0);
        let at = self.index(self.posted);
        self.entries[at] = entry;
        self.posted = self.posted.wrapping_add(1);
    }

    /// The entry that was posted `back` entries before the end, 1 being the last.
    #[inline]
    pub(crate) fn before_end(&mut self, back: u32) -> &mut E {
        let at = self.index(self.posted.wrapping_sub(back));
        &mut self.entries[at]
    }

    /// The oldest entry that is not free.
    #[inline]
    pub(crate) fn head(&self) -> Option<&E> {
        (self.len() > 0).then(|| &self.entries[self.index(self.done)])
    }

    /// The entry with so many in front of it; the caller knows that it is not free.
    #[inline]
    pub(crate) fn at(&mut self, offset: u32) -> &mut E {
        debug_assert!(offset < self.len());
        let at = self.index(self.done.wrapping_add(offset));
        &mut self.entries[at]
    }

    /// Frees the oldest entry.
    #[inline]
    pub(crate) fn take_head(&mut self) -> Option<E> {
        let head = *self.head()?;
        self.done = self.done.wrapping_add(1);
        Some(head)
    }

    /// How many entries are in front of the one at a place, if that is not free.
    #[inline]
    pub(crate) fn before(&self, place: u32) -> Option<u32> {
        let offset = place.wrapping_sub(self.done) & PLACES;
        (offset < self.len()).then_some(offset)
    }

    /// In a broken queue: the adapter has ended the first `count` entries.
    #[inline]
    pub(crate) fn end(&mut self, count: u32) {
        let ended = self.done.wrapping_add(count);
        let now = self.ended.wrapping_sub(self.done);
        // `ended` stands still while the queue is whole, so it may be far behind.
        if !self.broken || now > self.len() || now < count {
            self.ended = ended;
        }
    }

    /// Whether the adapter has ended the oldest entry of a broken queue.
    #[inline]
    pub(crate) fn head_is_ended(&self) -> bool {
        self.broken && self.len() > 0 && {
            let ended = self.ended.wrapping_sub(self.done);
            (1..=self.len()).contains(&ended)
        }
    }

    /// A failure was reported, of an entry that is free now.
    #[inline]
    pub(crate) fn break_off(&mut self) {
        if !self.broken {
            self.ended = self.done;
            self.broken = true;
        }
    }

    /// A failure is known and not reported yet: the adapter has ended the first `count` entries, and executes none behind them.
    pub(crate) fn break_behind(&mut self, count: u32) {
        self.break_off();
        self.end(count);
    }

    fn index(&self, count: u32) -> usize {
        count as usize & (self.entries.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_exactly_its_depth_also_when_the_count_wraps() {
        let mut ring = Ring::new(3, 0);
        ring.posted = PLACES - 1;
        ring.done = PLACES - 1;
        for round in 0..8 {
            for entry in 0..3 {
                assert_eq!(ring.room(), 3 - entry);
                let place = ring.next_place();
                ring.push(round * 3 + entry);
                assert_eq!(ring.before(place), Some(entry as u32));
            }
            assert_eq!(ring.room(), 0);
            assert_eq!(ring.before(ring.next_place()), None);
            for entry in 0..3 {
                assert_eq!(ring.take_head(), Some(round * 3 + entry));
            }
        }
    }

    #[test]
    fn a_broken_queue_gives_up_what_the_adapter_has_ended() {
        let mut ring = Ring::new(4, 0);
        for entry in 0..4 {
            ring.push(entry);
        }
        ring.take_head();
        ring.break_off();
        assert!(!ring.head_is_ended());
        ring.end(2);
        ring.end(1);
        for _ in 0..2 {
            assert!(ring.head_is_ended());
            ring.take_head();
        }
        assert!(!ring.head_is_ended());
        ring.end(1);
        assert!(ring.head_is_ended());
        ring.take_head();
        assert!(!ring.head_is_ended());
    }

    #[test]
    fn a_queue_may_break_in_front_of_entries_that_are_not_reported() {
        let mut ring = Ring::new(4, 0);
        ring.posted = u32::MAX;
        ring.done = u32::MAX;
        for entry in 0..4 {
            ring.push(entry);
        }
        assert_eq!(*ring.at(2), 2);
        ring.break_behind(2);
        ring.break_behind(1);
        assert!(ring.is_broken());
        for _ in 0..2 {
            assert!(ring.head_is_ended());
            ring.take_head();
        }
        assert!(!ring.head_is_ended());
    }
}
