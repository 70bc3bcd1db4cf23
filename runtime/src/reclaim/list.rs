//! Doubly linked lists threaded through the key table: a key is in at most one list of a set, moving it costs a few
//! stores, and nothing is allocated.

use super::key::KeyIx;

/// No key, no list.
const NIL: u32 = u32::MAX;

/// The number of a list within its set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct ListId(pub u32);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Link {
    prev: u32,
    next: u32,
    list: u32,
}

const UNLINKED: Link = Link {
    prev: NIL,
    next: NIL,
    list: NIL,
};

/// A set of lists over one table of keys. Each list is a ring, so that its head alone finds both ends.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Lists {
    heads: Box<[u32]>,
    lens: Box<[u32]>,
    links: Box<[Link]>,
}

impl Lists {
    pub(super) fn new(lists: usize, keys: usize) -> Self {
        Self {
            heads: vec![NIL; lists].into_boxed_slice(),
            lens: vec![0; lists].into_boxed_slice(),
            links: vec![UNLINKED; keys].into_boxed_slice(),
        }
    }

    /// The list that holds `key`.
    pub(super) fn list_of(&self, key: KeyIx) -> Option<ListId> {
        let list = self.links[key.0 as usize].list;
        (list != NIL).then_some(ListId(list))
    }

    pub(super) fn first(&self, list: ListId) -> Option<KeyIx> {
        let head = self.heads[list.0 as usize];
        (head != NIL).then_some(KeyIx(head))
    }

    /// The key behind `key` in its list.
    pub(super) fn next(&self, key: KeyIx) -> Option<KeyIx> {
        let link = self.links[key.0 as usize];
        assert!(link.list != NIL, "{key:?} is in no list");
        (link.next != self.heads[link.list as usize]).then_some(KeyIx(link.next))
    }

    pub(super) fn is_empty(&self, list: ListId) -> bool {
        self.heads[list.0 as usize] == NIL
    }

    /// How many keys it holds.
    pub(super) fn len(&self, list: ListId) -> u32 {
        self.lens[list.0 as usize]
    }

    pub(super) fn iter(&self, list: ListId) -> impl Iterator<Item = KeyIx> + '_ {
        core::iter::successors(self.first(list), |&key| self.next(key))
    }

    /// Appends `key`, which must be in no list.
    pub(super) fn push_back(&mut self, list: ListId, key: KeyIx) {
        assert!(
            self.links[key.0 as usize].list == NIL,
            "{key:?} is in a list already"
        );
        self.lens[list.0 as usize] += 1;
        let head = self.heads[list.0 as usize];
        let (prev, next) = if head == NIL {
            self.heads[list.0 as usize] = key.0;
            (key.0, key.0)
        } else {
            let last = self.links[head as usize].prev;
            self.links[head as usize].prev = key.0;
            self.links[last as usize].next = key.0;
            (last, head)
        };
        self.links[key.0 as usize] = Link {
            prev,
            next,
            list: list.0,
        };
    }

    /// Takes `key` out of the list it is in.
    pub(super) fn remove(&mut self, key: KeyIx) {
        let link = self.links[key.0 as usize];
        assert!(link.list != NIL, "{key:?} is in no list");
        self.lens[link.list as usize] -= 1;
        let head = &mut self.heads[link.list as usize];
        if link.next == key.0 {
            *head = NIL;
        } else {
            if *head == key.0 {
                *head = link.next;
            }
            self.links[link.prev as usize].next = link.next;
            self.links[link.next as usize].prev = link.prev;
        }
        self.links[key.0 as usize] = UNLINKED;
    }

    /// Takes `key` out of its list and appends it to `list`.
    pub(super) fn move_to(&mut self, list: ListId, key: KeyIx) {
        self.remove(key);
        self.push_back(list, key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(lists: &Lists, list: u32) -> Vec<u32> {
        lists.iter(ListId(list)).map(|key| key.0).collect()
    }

    #[test]
    fn keeps_order_and_finds_its_list() {
        let mut lists = Lists::new(2, 5);
        for key in 0..5 {
            lists.push_back(ListId(0), KeyIx(key));
        }
        lists.remove(KeyIx(0));
        lists.move_to(ListId(1), KeyIx(3));
        lists.move_to(ListId(1), KeyIx(1));
        assert_eq!(keys(&lists, 0), [2, 4]);
        assert_eq!(keys(&lists, 1), [3, 1]);
        assert_eq!((lists.len(ListId(0)), lists.len(ListId(1))), (2, 2));
        assert_eq!(lists.list_of(KeyIx(0)), None);
        assert_eq!(lists.list_of(KeyIx(1)), Some(ListId(1)));
        lists.remove(KeyIx(2));
        lists.remove(KeyIx(4));
        assert!(lists.is_empty(ListId(0)));
    }

    #[test]
    #[should_panic(expected = "in a list already")]
    fn refuses_a_key_in_two_lists() {
        let mut lists = Lists::new(2, 1);
        lists.push_back(ListId(0), KeyIx(0));
        lists.push_back(ListId(1), KeyIx(0));
    }
}
