//! What a liar says that is not so, and that a sound engine counts and drops.

use keyfence::ids::{ContextId, Epoch, GrantId};
use keyfence::pmd::{Remote, Rights, WorkOp};
use keyfence::wire::{self, ContextGone, Found, Frame, Grant, Header, List, WireContext};

use super::Liar;
use super::link::GRANTED_BYTES;
use super::temper::Lie;
use crate::sim::harm::Harm;

/// Bytes ahead of a grant's address: behind them nothing is changed, since whether an address that is changed a little is one depends on the process.
const AHEAD_OF_ADDRESS: usize = wire::HEADER_BYTES + 2 + 16;

impl Liar {
    /// Tells one lie, if there is somebody to hear it. Returns whether there was.
    pub(super) fn lie(&mut self) -> bool {
        let lie = match self.dice.once_in(4) {
            true => Lie::UseKey,
            false => Lie::ALL[self.dice.below(Lie::ALL.len())],
        };
        let Some(at) = self.some_lane() else {
            return false;
        };
        match lie {
            Lie::Replay => self.replay(at),
            Lie::Mutate => self.mutate(at),
            Lie::Cut => self.cut(at),
            Lie::Noise => self.noise(at),
            Lie::ContextCredit => {
                let limit = self.counter();
                let context = self.own();
                self.credit(at, context, limit)
            }
            Lie::LaneCredit => {
                let header = Header {
                    lane_credit: self.counter(),
                    ..self.header(at)
                };
                self.say(at, &header, &Frame::KeepAlive { number: 7 })
            }
            Lie::Flood => self.flood(at),
            Lie::Grant => self.grant(at),
            Lie::Ask => self.ask(),
            Lie::UseKey => self.use_key(),
            _ => self.say_of_objects(at, lie),
        }
    }

    /// Of contexts, grants and epochs: those that are, and others.
    fn say_of_objects(&mut self, at: usize, lie: Lie) -> bool {
        let (own, other) = (self.own(), self.other(at));
        let contexts = [own, other];
        let ids = [self.some_grant(), self.some_grant(), self.some_grant()];
        let some = &ids[..1 + self.dice.below(3)];
        let epoch = self.some_epoch();
        let frame = match lie {
            Lie::Revoke => Frame::Revoke {
                epoch,
                last: self.dice.once_in(2),
                grants: List::from(some),
            },
            Lie::Revoked => Frame::Revoked { epoch },
            Lie::Gone => {
                // Those that are found from now on are others.
                self.generation += u32::from(self.dice.once_in(4));
                Frame::ContextGone(ContextGone {
                    context: own,
                    quarantined_keys: self.dice.below(9) as u32,
                    quarantined_bytes: self.dice.bits(),
                })
            }
            Lie::Dropped if self.dice.once_in(2) => Frame::Refused { grant: ids[0] },
            Lie::Dropped => Frame::ImportsDropped {
                grants: List::from(some),
            },
            Lie::Landed => Frame::Landed {
                grant: ids[0],
                immediate: self.dice.bits() as u32,
                bytes: self.dice.bits(),
            },
            Lie::LookupReply => Frame::LookupReply {
                request: (self.dice.below(3) << 16 | self.dice.below(3)) as u32,
                found: self.dice.once_in(2).then(|| Found {
                    context: ContextId::from_bits(self.dice.bits()),
                    credit: self.dice.bits() as u32,
                }),
            },
            Lie::OutOfPlace => self.out_of_place(&contexts),
            _ => return self.look_up(at),
        };
        self.say(at, &self.between(at, own, other), &frame)
    }

    /// What belongs to the end of a session, or to a lane that repairs another.
    fn out_of_place<'a>(&mut self, contexts: &'a [WireContext]) -> Frame<'a> {
        let number = self.dice.below(9) as u32;
        match number {
            0 | 1 => Frame::Begin {
                repair: number,
                received: number,
            },
            2 | 3 => Frame::Ended {
                contexts: List::from(contexts),
            },
            4 | 5 => Frame::End { repair: number },
            _ => Frame::Bye { session: number },
        }
    }

    fn replay(&mut self, at: usize) -> bool {
        let Some(bytes) = self.memory.frames.any(&mut self.dice) else {
            return false;
        };
        let said = self.say_bytes(at, &bytes);
        if said {
            self.harms.add(Harm::ReplayedFrames);
        }
        said
    }

    fn mutate(&mut self, at: usize) -> bool {
        let Some(mut bytes) = self.memory.frames.any(&mut self.dice) else {
            return false;
        };
        for _ in 0..1 + self.dice.below(3) {
            let place = self.dice.below(bytes.len().clamp(1, AHEAD_OF_ADDRESS));
            if let Some(byte) = bytes.get_mut(place) {
                *byte ^= 1 << self.dice.below(8);
            }
        }
        self.say_bytes(at, &bytes)
    }

    /// Shorter than it was, or longer.
    fn cut(&mut self, at: usize) -> bool {
        let Some(mut bytes) = self.memory.frames.any(&mut self.dice) else {
            return false;
        };
        let len = self.dice.below(bytes.len() + 40);
        bytes.resize(len, 0);
        self.say_bytes(at, &bytes)
    }

    fn noise(&mut self, at: usize) -> bool {
        let len = self.dice.below(200);
        let mut bytes: Vec<u8> = (0..len).map(|_| self.dice.bits() as u8).collect();
        if let Some(kind) = bytes.first_mut() {
            // Mostly one that there is.
            *kind %= 17;
        }
        self.say_bytes(at, &bytes)
    }

    fn flood(&mut self, at: usize) -> bool {
        let (own, other) = (self.own(), self.other(at));
        let header = self.between(at, own, other);
        let mut any = false;
        for _ in 0..1 + self.dice.below(12) {
            let len = self.dice.below(100);
            any |= self.say(at, &header, &Frame::Message(&[0x5a; 100][..len]));
        }
        any
    }

    /// Opens memory of ours for a while, by a key that works all the time.
    fn grant(&mut self, at: usize) -> bool {
        let Some(remote) = self.link.as_ref().map(super::link::Link::granted) else {
            return false;
        };
        let len = 8 + self.dice.below(GRANTED_BYTES - 8) as u64;
        let grant = self.grant_of(remote, len);
        self.offer(at, grant)
    }

    pub(super) fn grant_of(&mut self, remote: Remote, len: u64) -> Grant {
        Grant {
            grant: GrantId {
                slot: self.dice.below(300) as u32,
                generation: 1 + self.dice.below(3) as u32,
            },
            rkey: remote.rkey,
            rights: Rights {
                atomic: false,
                ..Rights::ALL
            },
            address: remote.address,
            len,
            lease_ns: [wire::NO_LEASE, 0, 1_000_000][self.dice.below(3)],
        }
    }

    pub(super) fn offer(&mut self, at: usize, grant: Grant) -> bool {
        let (own, other) = (self.own(), self.other(at));
        let grants = [grant];
        let grants = List::from(&grants[..]);
        self.say(at, &self.between(at, own, other), &Frame::Grants { grants })
    }

    /// Asks for a lane, although the other side is to ask; with words that were heard before, or nearly.
    fn ask(&mut self) -> bool {
        let Some(mut words) = self.memory.requests.any(&mut self.dice) else {
            return false;
        };
        if self.dice.once_in(2) {
            let place = self.dice.below(words.len());
            words[place] ^= 1 << self.dice.below(8);
        }
        let engine = self.engines[self.dice.below(self.engines.len())];
        let Some(link) = &mut self.link else {
            return false;
        };
        let Some(at) = link.add_lane(words.clone()) else {
            return false;
        };
        link.connect(at, &format!("local:{engine}"), &words);
        true
    }

    fn use_key(&mut self) -> bool {
        let Some(key) = self.memory.keys.any_of(&mut self.dice, |key| !key.is_dead) else {
            return false;
        };
        let len = 1 + self.dice.below((key.grant.len as usize).min(GRANTED_BYTES));
        let Rights { read, write, .. } = key.grant.rights;
        let reads = read && (!write || self.dice.once_in(2));
        let rest = key.grant.len as usize - len;
        let remote = Remote {
            address: key.grant.address + self.dice.below(rest + 1) as u64,
            rkey: key.grant.rkey,
        };
        self.access(key.lane, access_of(remote, reads), len)
    }

    pub(super) fn access(&mut self, at: usize, op: WorkOp, len: usize) -> bool {
        self.link
            .as_mut()
            .is_some_and(|link| link.access(at, op, len))
    }

    pub(super) fn some_lane(&mut self) -> Option<usize> {
        let link = self.link.as_ref()?;
        let up = |at: &usize| link.lane(*at).is_some_and(|lane| lane.up);
        let up: Vec<usize> = (0..link.lanes.len()).filter(up).collect();
        (!up.is_empty()).then(|| up[self.dice.below(up.len())])
    }

    /// A context of ours.
    fn own(&mut self) -> WireContext {
        WireContext {
            slot: [0, 1, 2, 3, 4, 63, 64, u16::MAX][self.dice.below(8)],
            generation: self.generation.wrapping_sub(self.dice.once_in(4).into()),
        }
    }

    /// One of the engine's, mostly one that it has told of.
    fn other(&mut self, at: usize) -> WireContext {
        let met = self
            .memory
            .met
            .any_of(&mut self.dice, |(lane, _)| *lane == at);
        match met {
            Some((_, context)) if !self.dice.once_in(8) => context,
            _ => WireContext {
                slot: self.dice.below(12) as u16,
                generation: self.dice.below(4) as u32,
            },
        }
    }

    /// A grant that was made to us, or by us, or never.
    fn some_grant(&mut self) -> GrantId {
        match self.memory.keys.any(&mut self.dice) {
            Some(key) if self.dice.once_in(2) => key.grant.grant,
            _ => GrantId {
                slot: [self.dice.below(300) as u32, u32::MAX][usize::from(self.dice.once_in(9))],
                generation: self.dice.below(4) as u32,
            },
        }
    }

    fn some_epoch(&mut self) -> Epoch {
        match self.memory.epochs.any(&mut self.dice) {
            Some((_, epoch)) if self.dice.once_in(2) => epoch,
            _ => Epoch([self.dice.below(1 << 22) as u64, u64::MAX][self.dice.below(2)]),
        }
    }

    /// An absolute counter that leaps, or goes back.
    fn counter(&mut self) -> u32 {
        [0, 1, self.dice.below(40) as u32, 9_999, 1 << 31, u32::MAX][self.dice.below(6)]
    }
}

/// A read, or a write.
pub(super) fn access_of(remote: Remote, reads: bool) -> WorkOp {
    match reads {
        true => WorkOp::Read { remote },
        false => WorkOp::Write {
            remote,
            immediate: None,
        },
    }
}
