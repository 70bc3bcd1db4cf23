//! What a liar does that costs a queue pair, or itself.

use keyfence::pmd::{Remote, Rights, Rkey};

use super::Liar;
use super::lies::access_of;
use super::link::{GRANTED_BYTES, RECEIVES};
use super::memory::Key;
use super::temper::Break;
use crate::sim::plan::MS;

/// Longer than any engine's receives in a plan.
const OVERSIZED_BYTES: usize = 5000;

impl Liar {
    /// Breaks one rule, if it can be broken now. Returns whether it could.
    pub(super) fn break_a_rule(&mut self) -> bool {
        let how = match (self.dice.below(6), self.temper.favourite) {
            (1.., Some(favourite)) => favourite,
            (0 | 1, _) => Break::DeadKey,
            (2, _) => Break::Starve,
            _ => Break::ALL[self.dice.below(Break::ALL.len())],
        };
        match how {
            Break::DeadKey => self.dead_key(),
            Break::Beyond => self.beyond(),
            Break::WrongRights => self.wrong_rights(),
            Break::WrongLane => self.wrong_lane(),
            Break::NoKey => self.no_key(),
            Break::Oversized => {
                let at = self.some_lane();
                at.is_some_and(|at| self.post(at, &[2; OVERSIZED_BYTES]))
            }
            Break::BeyondCredit => self.beyond_credit(),
            Break::NonsenseGrant => self.nonsense_grant(),
            Break::Error => {
                let Some(at) = self.some_lane() else {
                    return false;
                };
                if let Some(link) = &mut self.link {
                    link.break_lane(at);
                }
                true
            }
            Break::Starve => {
                self.starved_until_ns = self.now_ns + self.up_to(4 * MS);
                true
            }
            Break::Stop => {
                self.stopped_until_ns = self.now_ns + self.up_to(8 * MS);
                true
            }
            Break::Restart => {
                self.link = None;
                self.stopped_until_ns = self.now_ns + self.up_to(3 * MS);
                true
            }
        }
    }

    fn dead_key(&mut self) -> bool {
        self.by_key(|key| key.is_dead, |key| (key.lane, key.grant.address))
    }

    /// Where the device does not keep a key to its bytes (Soft-RoCE), a peer that lies is out of scope (R12).
    fn beyond(&mut self) -> bool {
        let bounds = self
            .link
            .as_ref()
            .is_some_and(super::link::Link::window_bounds);
        let last = |key: Key| (key.lane, key.grant.address + key.grant.len - 1);
        bounds && self.by_key(|_| true, last)
    }

    fn wrong_rights(&mut self) -> bool {
        let one_way = |key: &Key| key.grant.rights.read != key.grant.rights.write;
        let Some(key) = self.memory.keys.any_of(&mut self.dice, one_way) else {
            return false;
        };
        let Rights { read, .. } = key.grant.rights;
        let remote = Remote {
            address: key.grant.address,
            rkey: key.grant.rkey,
        };
        self.access(key.lane, access_of(remote, !read), 8)
    }

    fn wrong_lane(&mut self) -> bool {
        let other = self.some_lane();
        other.is_some_and(|at| self.by_key(|key| key.lane != at, |key| (at, key.grant.address)))
    }

    fn no_key(&mut self) -> bool {
        let Some(at) = self.some_lane() else {
            return false;
        };
        let remote = Remote {
            address: self.dice.bits() | 1 << 63,
            rkey: Rkey::new(self.dice.below(1 << 12) as u32, self.dice.bits() as u8),
        };
        let reads = self.dice.once_in(2);
        self.access(at, access_of(remote, reads), 16)
    }

    /// An access of up to some bytes by a key that fits, on the lane and at the address of it.
    fn by_key(&mut self, fits: impl Fn(&Key) -> bool, place: impl Fn(Key) -> (usize, u64)) -> bool {
        let Some(key) = self.memory.keys.any_of(&mut self.dice, fits) else {
            return false;
        };
        let (at, address) = place(key);
        let remote = Remote {
            address,
            rkey: key.grant.rkey,
        };
        let len = (key.grant.len as usize).clamp(2, GRANTED_BYTES);
        let reads = !key.grant.rights.write;
        self.access(at, access_of(remote, reads), len)
    }

    /// Frames that the engine has no receives for.
    fn beyond_credit(&mut self) -> bool {
        let Some(at) = self.some_lane() else {
            return false;
        };
        let header = self.header(at).encode_message();
        let mut any = false;
        for _ in 0..8 * RECEIVES {
            any |= self.post(at, &header);
        }
        any
    }

    fn nonsense_grant(&mut self) -> bool {
        let Some(at) = self.some_lane() else {
            return false;
        };
        let remote = Remote {
            address: [0, 1 << 63, u64::MAX, 0x1000][self.dice.below(4)],
            rkey: Rkey::new(self.dice.below(1 << 12) as u32, self.dice.bits() as u8),
        };
        let len = [0, 1, 64, 1 << 40, u64::MAX][self.dice.below(5)];
        let grant = self.grant_of(remote, len);
        self.offer(at, grant)
    }

    fn up_to(&mut self, ns: u64) -> u64 {
        self.dice.below(ns as usize) as u64
    }
}
