//! Slots of a table by the context that they belong to: doubly linked lists through it, so that the end of a context costs what it has and not
//! what the table holds.

/// No slot.
const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    behind: u32,
}

/// The lists.
#[derive(Debug)]
pub struct ByContext {
    first: Box<[u32]>,
    links: Box<[Link]>,
}

impl ByContext {
    /// For a table of `slots` and so many contexts.
    pub fn new(slots: u32, contexts: u16) -> Self {
        let link = Link {
            before: NIL,
            behind: NIL,
        };
        Self {
            first: vec![NIL; contexts.into()].into_boxed_slice(),
            links: vec![link; slots as usize].into_boxed_slice(),
        }
    }

    /// Lists a slot that is in no list.
    pub fn insert(&mut self, context: u16, slot: u32) {
        let behind = core::mem::replace(&mut self.first[context as usize], slot);
        if let Some(behind) = self.links.get_mut(behind as usize) {
            behind.before = slot;
        }
        self.links[slot as usize] = Link {
            before: NIL,
            behind,
        };
    }

    /// Takes a slot out of its context's list.
    pub fn remove(&mut self, context: u16, slot: u32) {
        let Link { before, behind } = self.links[slot as usize];
        match self.links.get_mut(before as usize) {
            Some(before) => before.behind = behind,
            None => {
                let first = core::mem::replace(&mut self.first[context as usize], behind);
                assert_eq!(first, slot, "a slot is in the list of its context");
            }
        }
        if let Some(behind) = self.links.get_mut(behind as usize) {
            behind.before = before;
        }
    }

    /// The first of a context's slots.
    pub fn first(&self, context: u16) -> Option<u32> {
        let first = self.first[context as usize];
        (first != NIL).then_some(first)
    }

    /// The one behind a slot in its list.
    pub fn next(&self, slot: u32) -> Option<u32> {
        let next = self.links[slot as usize].behind;
        (next != NIL).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(lists: &ByContext, context: u16) -> Vec<u32> {
        core::iter::successors(lists.first(context), |&slot| lists.next(slot)).collect()
    }

    #[test]
    fn each_context_finds_its_own() {
        let mut lists = ByContext::new(8, 2);
        for slot in 0..6 {
            lists.insert((slot % 2) as u16, slot);
        }
        assert_eq!(slots(&lists, 0), [4, 2, 0]);
        lists.remove(0, 2);
        lists.remove(0, 4);
        lists.remove(1, 1);
        assert_eq!((slots(&lists, 0), slots(&lists, 1)), (vec![0], vec![5, 3]));
        lists.remove(0, 0);
        lists.insert(0, 2);
        assert_eq!(slots(&lists, 0), [2]);
    }
}
