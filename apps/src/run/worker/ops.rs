//! The operations of a worker that have not completed.

use keyfence::ids::ImportId;

/// Operations of a worker at most: what a context may have in flight by default.
pub const MAX_OPS: usize = 64;

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// The import that it uses.
    pub import: Option<ImportId>,
    /// The buffer that it uses, by index.
    pub cell: Option<usize>,
    /// Where the bytes begin, in that buffer and in the grant alike.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
    /// Whether it reads the header of a new import.
    pub learns: bool,
    /// Of a numbered message: its number, and which of our partners it is for.
    pub number: Option<(u64, u32)>,
    /// The era of the lanes' breaks in which it was submitted.
    pub era: u64,
    /// When it was, or should have been, submitted; `None` if it is not timed.
    pub start_ns: Option<u64>,
}

/// The table. A token is a place in it and how often that was used.
#[derive(Debug)]
pub struct Ops {
    places: Vec<(u32, Option<Op>)>,
    free: Vec<u8>,
}

impl Ops {
    /// An empty table.
    pub fn new() -> Self {
        Self {
            places: vec![(0, None); MAX_OPS],
            free: (0..MAX_OPS as u8).collect(),
        }
    }

    /// Operations in it.
    pub fn open(&self) -> usize {
        MAX_OPS - self.free.len()
    }

    /// The token that the next one will have; `None` if the table is full.
    pub fn next_token(&self) -> Option<u64> {
        let place = *self.free.last()?;
        Some(u64::from(self.places[usize::from(place)].0) << 8 | u64::from(place))
    }

    /// Enters the operation that was submitted under the next token.
    pub fn enter(&mut self, op: Op) {
        let place = self.free.pop().expect("there was a next token");
        self.places[usize::from(place)].1 = Some(op);
    }

    /// Takes out the operation of a token, if it is there.
    pub fn take(&mut self, token: u64) -> Option<Op> {
        let place = (token & 0xff) as u8;
        let (round, op) = self.places.get_mut(usize::from(place))?;
        if u64::from(*round) != token >> 8 {
            return None;
        }
        let op = op.take()?;
        *round = round.wrapping_add(1);
        self.free.push(place);
        Some(op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r7_a_token_is_good_once() {
        let mut ops = Ops::new();
        let op = Op {
            import: None,
            cell: None,
            offset: 0,
            len: 0,
            learns: false,
            number: None,
            era: 0,
            start_ns: None,
        };
        let first = ops.next_token().expect("empty");
        ops.enter(op);
        assert_eq!(ops.open(), 1);
        assert!(ops.take(first + 1).is_none(), "a place that is not taken");
        assert!(ops.take(first).is_some());
        assert!(ops.take(first).is_none(), "a second completion is seen");
        assert_ne!(ops.next_token(), Some(first));
        (0..MAX_OPS).for_each(|_| ops.enter(op));
        assert_eq!(ops.next_token(), None);
    }
}
