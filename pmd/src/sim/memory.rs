//! Bytes in and out of arenas. Each access is recorded at the moment at which it touches them.

use super::keys::{Place, Refused};
use super::qp::QpRef;
use super::record::Access;
use super::state::State;
use crate::ids::PdId;
use crate::work::{Sge, WorkOp};

impl State {
    /// Checks a part of a scatter/gather list.
    pub(super) fn local(
        &self,
        at: QpRef,
        pd: PdId,
        sges: &[Sge],
        (skip, len): (u64, u64),
    ) -> Result<Vec<Place>, Refused> {
        let adapter = &self.adapters[at.adapter as usize];
        adapter.keys.local(pd, sges, skip, len)
    }

    /// Reads the bytes.
    pub(super) fn read(&mut self, at: QpRef, places: &[Place]) -> Vec<u8> {
        let len = places.iter().map(|place| place.len).sum();
        let mut bytes = vec![0; len];
        let mut rest = bytes.as_mut_slice();
        for place in places {
            let (part, behind) = rest.split_at_mut(place.len);
            let source = place.arena.dma(place.offset, place.len);
            let read = source.and_then(|source| source.read_into(part));
            read.expect("checked bytes are in their arena");
            rest = behind;
            self.record(at, place, false);
        }
        self.hash.add_bytes(&bytes);
        bytes
    }

    /// Writes the bytes.
    pub(super) fn write(&mut self, at: QpRef, places: &[Place], bytes: &[u8]) {
        let mut rest = bytes;
        for place in places {
            let (part, behind) = rest.split_at(place.len);
            let sink = place.arena.dma(place.offset, place.len);
            let written = sink.and_then(|sink| sink.write_from(part));
            written.expect("checked bytes are in their arena");
            rest = behind;
            self.record(at, place, true);
        }
        self.hash.add_bytes(bytes);
    }

    /// Does an atomic on 8 aligned bytes; gives what was there before.
    pub(super) fn modify(&mut self, at: QpRef, place: &Place, op: &WorkOp) -> u64 {
        let word = place.arena.dma(place.offset, place.len);
        let word = word.expect("checked bytes are in their arena");
        let former = match *op {
            WorkOp::FetchAdd { add, .. } => word.fetch_add_u64(0, add),
            WorkOp::CompareSwap {
                expected, desired, ..
            } => word.compare_exchange_u64(0, expected, desired),
            _ => word.load_u64(0),
        };
        let former = former.expect("an accepted atomic is aligned");
        self.record(at, place, true);
        self.hash.add(former);
        former
    }

    fn record(&mut self, at: QpRef, place: &Place, is_write: bool) {
        self.accesses.add(Access {
            at_ns: self.now_ns,
            adapter: at.adapter,
            qp: at.qp,
            key: place.key,
            address: place.address,
            len: place.len as u64,
            is_write,
        });
    }
}
