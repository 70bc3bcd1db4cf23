//! What is accepted and has not landed: each item at its own time, in any order within one request, in order across requests.

use std::collections::BTreeMap;

/// When an item lands, and its place among those of the same time.
pub(super) type Turn = (u64, u64);

/// Items on their way into memory, or out of it.
#[derive(Debug)]
pub(super) struct Landing<T> {
    items: BTreeMap<Turn, Item<T>>,
    /// Nothing of the request being accepted lands before: the time at which all earlier requests have landed.
    floor_ns: u64,
    latest_ns: u64,
    next: u64,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Item<T> {
    pub(super) what: T,
    /// Its time was drawn by the fault `late_landing`.
    pub(super) is_late: bool,
}

impl<T> Landing<T> {
    pub(super) fn new() -> Self {
        Self {
            items: BTreeMap::new(),
            floor_ns: 0,
            latest_ns: 0,
            next: 0,
        }
    }

    /// Adds an item for the time `at_ns`, or later if it may not overtake. Gives the time.
    pub(super) fn add(&mut self, at_ns: u64, begins: bool, is_late: bool, what: T) -> u64 {
        if begins {
            self.floor_ns = self.latest_ns;
        }
        let at_ns = at_ns.max(self.floor_ns);
        self.latest_ns = self.latest_ns.max(at_ns);
        self.next += 1;
        self.items
            .insert((at_ns, self.next), Item { what, is_late });
        at_ns
    }

    /// The next item that is due.
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<Item<T>> {
        let first = self.items.first_entry()?;
        (first.key().0 <= now_ns).then(|| first.remove())
    }

    /// All items up to the last that `matches`, in the order of landing: those before it may not be overtaken.
    pub(super) fn up_to_last(&self, matches: impl Fn(&T) -> bool) -> Vec<Turn> {
        let last = self
            .items
            .iter()
            .rev()
            .find(|(_, item)| matches(&item.what));
        let Some((last, _)) = last else {
            return Vec::new();
        };
        self.items.range(..=*last).map(|(turn, _)| *turn).collect()
    }

    pub(super) fn remove(&mut self, turn: Turn) -> Option<T> {
        self.items.remove(&turn).map(|item| item.what)
    }

    pub(super) fn drop_all(&mut self, matches: impl Fn(&T) -> bool) {
        self.items.retain(|_, item| !matches(&item.what));
    }

    /// Keeps the first `count` items alone.
    pub(super) fn cut(&mut self, count: usize) {
        if let Some(turn) = self.items.keys().nth(count).copied() {
            self.items.split_off(&turn);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }
}
