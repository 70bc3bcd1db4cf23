//! Names of device objects. All are small integers that a device hands out; none is ever a pointer.

use core::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id! {
    /// A polling thread of the engine, counted from 0. It is not the number of a CPU.
    LcoreId(u16)
}
id! {
    /// A protection domain of one device.
    PdId(u32)
}
id! {
    /// A registered memory region of one device.
    RegionId(u32)
}
id! {
    /// A queue pair of one device. A number is used once in a device's life, so a late completion of a destroyed queue
    /// pair is never taken for one of its successor.
    QpId(u32)
}
id! {
    /// A type-2 memory window of one device. A number is not used again while the window is allocated.
    WindowId(u32)
}
id! {
    /// A connection request that a listener received and that is answered once, by `accept` or `reject`.
    RequestId(u64)
}
id! {
    /// The caller's name for one work request (verbs: `wr_id`). The device gives it back untouched, and it is the only
    /// thing by which a completion is attributed.
    WorkId(u64)
}
id! {
    /// The key of local memory in a scatter/gather entry.
    Lkey(u32)
}

/// A remote key: the index of a window or region, and a tag of 8 bits in the lowest byte.
///
/// A window's tag is chosen anew at each bind, so that the key of an earlier bind is dead. After 256 binds the first value is
/// valid again (measured on Soft-RoCE; true of every adapter whose tag has 8 bits), which is why the runtime keeps books
/// of values that somebody may still know.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rkey(pub u32);

impl Rkey {
    /// The key with this index (24 bits) and tag.
    #[must_use]
    pub const fn new(index: u32, tag: u8) -> Self {
        Self((index << 8) | tag as u32)
    }

    /// The index of the window or region.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.0 >> 8
    }

    /// The 8 bits that change at each bind.
    #[must_use]
    pub const fn tag(self) -> u8 {
        self.0 as u8
    }

    /// The same index with another tag.
    #[must_use]
    pub const fn with_tag(self, tag: u8) -> Self {
        Self::new(self.index(), tag)
    }
}

impl fmt::Debug for Rkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rkey({:#x}/{})", self.index(), self.tag())
    }
}
