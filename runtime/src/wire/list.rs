//! Lists in a frame, borrowed from the caller's slice or from the frame's bytes.

use core::fmt;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use keyfence_pmd::{Rights, Rkey};

use super::{DecodeError, EncodeError, Grant, WireContext, layout};
use crate::ids::GrantId;

/// A list of a frame: of grants, of their names, of contexts, or of credit limits. To send it, borrow a slice: `List::from(&ids[..])`.
#[derive(Clone, Copy)]
pub struct List<'a, T: Item>(Source<'a, T>);

#[derive(Clone, Copy)]
enum Source<'a, T: Item> {
    Items(&'a [T]),
    Wire(&'a [T::Layout]),
}

impl<'a, T: Item> List<'a, T> {
    /// How many entries it has.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self.0 {
            Source::Items(items) => items.len(),
            Source::Wire(items) => items.len(),
        }
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entries in order.
    #[must_use]
    pub const fn iter(&self) -> ListIter<'a, T> {
        ListIter {
            list: *self,
            next: 0,
        }
    }

    /// The `count` entries that are all of `bytes`.
    pub(super) fn from_wire(
        bytes: &'a [u8],
        count: u16,
        max: usize,
        before: usize,
    ) -> Result<Self, DecodeError> {
        let got = usize::from(count);
        if got > max {
            return Err(DecodeError::ListTooLong { max, got });
        }
        let bytes = super::decode::exactly(bytes, got * size_of::<T::Layout>(), before)?;
        // The length is checked and the layout has no alignment, so this can't fail; were that wrong, it would be a
        // refused frame and not a panic.
        let items = <[T::Layout]>::ref_from_bytes(bytes).map_err(|_| DecodeError::TooShort {
            wanted: got * size_of::<T::Layout>(),
            got: bytes.len(),
        })?;
        Ok(Self(Source::Wire(items)))
    }

    /// The entries of a decoded list as they came; none of another.
    pub(super) const fn layouts(&self) -> &'a [T::Layout] {
        match self.0 {
            Source::Items(_) => &[],
            Source::Wire(items) => items,
        }
    }

    /// Its length as the wire has it.
    pub(super) fn count(&self, max: usize) -> Result<u16, EncodeError> {
        let too_long = EncodeError::ListTooLong {
            max,
            got: self.len(),
        };
        if self.len() > max {
            return Err(too_long);
        }
        u16::try_from(self.len()).map_err(|_| too_long)
    }

    /// Its bytes on the wire.
    pub(super) const fn bytes(&self) -> usize {
        self.len() * size_of::<T::Layout>()
    }

    /// Writes the entries; `out` has exactly [`bytes`](Self::bytes).
    pub(super) fn write(&self, out: &mut [u8]) {
        let each = out.chunks_exact_mut(size_of::<T::Layout>());
        for (chunk, item) in each.zip(self.iter()) {
            chunk.copy_from_slice(item.to_layout().as_bytes());
        }
    }
}

impl<'a, T: Item> From<&'a [T]> for List<'a, T> {
    fn from(items: &'a [T]) -> Self {
        Self(Source::Items(items))
    }
}

impl<'a, T: Item> IntoIterator for List<'a, T> {
    type Item = T;
    type IntoIter = ListIter<'a, T>;

    fn into_iter(self) -> ListIter<'a, T> {
        self.iter()
    }
}

impl<T: Item + PartialEq> PartialEq for List<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<T: Item + Eq> Eq for List<'_, T> {}

impl<T: Item + fmt::Debug> fmt::Debug for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The entries of a [`List`].
#[derive(Clone, Debug)]
pub struct ListIter<'a, T: Item + fmt::Debug> {
    list: List<'a, T>,
    next: usize,
}

impl<T: Item> Iterator for ListIter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        let item = match self.list.0 {
            Source::Items(items) => items.get(self.next).copied(),
            Source::Wire(items) => items.get(self.next).map(T::from_layout),
        }?;
        self.next += 1;
        Some(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.list.len() - self.next;
        (left, Some(left))
    }
}

impl<T: Item> ExactSizeIterator for ListIter<'_, T> {}

/// What a list can hold: [`Grant`], [`GrantId`], [`WireContext`] and [`CreditLimit`].
pub trait Item: sealed::Item {}

impl<T: sealed::Item> Item for T {}

/// How many messages a context may have sent in all, counted from its start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CreditLimit {
    /// The context that receives them; it lives on the lcore of this frame's sender.
    pub context: WireContext,
    /// The count, modulo 2^32. It is absolute, so a lost or repeated frame does no harm.
    pub limit: u32,
}

mod sealed {
    use super::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, fmt};

    pub trait Item: Copy + fmt::Debug {
        type Layout: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + Copy;

        fn to_layout(self) -> Self::Layout;
        fn from_layout(layout: &Self::Layout) -> Self;
    }
}

impl sealed::Item for GrantId {
    type Layout = U64;

    fn to_layout(self) -> U64 {
        self.to_bits().into()
    }

    fn from_layout(layout: &U64) -> Self {
        Self::from_bits(layout.get())
    }
}

impl sealed::Item for Grant {
    type Layout = layout::Grant;

    fn to_layout(self) -> layout::Grant {
        let Rights {
            read,
            write,
            atomic,
        } = self.rights;
        layout::Grant {
            grant: self.grant.to_bits().into(),
            rkey: self.rkey.0.into(),
            rights: (u8::from(read) * layout::RIGHT_READ)
                | (u8::from(write) * layout::RIGHT_WRITE)
                | (u8::from(atomic) * layout::RIGHT_ATOMIC),
            reserved: [0; 3],
            address: self.address.into(),
            len: self.len.into(),
            lease_ns: self.lease_ns.into(),
        }
    }

    fn from_layout(layout: &layout::Grant) -> Self {
        Self {
            grant: GrantId::from_bits(layout.grant.get()),
            rkey: Rkey(layout.rkey.get()),
            rights: Rights {
                read: layout.rights & layout::RIGHT_READ != 0,
                write: layout.rights & layout::RIGHT_WRITE != 0,
                atomic: layout.rights & layout::RIGHT_ATOMIC != 0,
            },
            address: layout.address.get(),
            len: layout.len.get(),
            lease_ns: layout.lease_ns.get(),
        }
    }
}

impl sealed::Item for WireContext {
    type Layout = layout::Context;

    fn to_layout(self) -> layout::Context {
        layout::Context {
            slot: self.slot.into(),
            generation: self.generation.into(),
        }
    }

    fn from_layout(layout: &layout::Context) -> Self {
        Self {
            slot: layout.slot.get(),
            generation: layout.generation.get(),
        }
    }
}

impl sealed::Item for CreditLimit {
    type Layout = layout::CreditLimit;

    fn to_layout(self) -> layout::CreditLimit {
        layout::CreditLimit {
            slot: self.context.slot.into(),
            generation: self.context.generation.into(),
            limit: self.limit.into(),
        }
    }

    fn from_layout(layout: &layout::CreditLimit) -> Self {
        Self {
            context: WireContext {
                slot: layout.slot.get(),
                generation: layout.generation.get(),
            },
            limit: layout.limit.get(),
        }
    }
}
