//! What a liar does about frames that come: look-ups and hellos are answered, revokes as it likes.

use keyfence::ids::{ContextId, Epoch, LcoreId};
use keyfence::wire::{self, CreditLimit, Found, Frame, Header, List, Name, WireContext};

use super::memory::Key;
use super::temper::Answers;
use super::{Liar, MESSAGES};
use crate::sim::actor::NAMES;

impl Liar {
    pub(super) fn take_frames(&mut self) -> bool {
        let mut arrived = Vec::new();
        let Some(link) = &mut self.link else {
            return false;
        };
        let any = link.poll(&mut arrived);
        for frame in arrived {
            self.hear(frame.lane, &frame.bytes);
            self.memory.frames.keep(frame.bytes);
        }
        any
    }

    fn hear(&mut self, at: usize, bytes: &[u8]) {
        let Ok((header, frame)) = wire::decode(bytes) else {
            return;
        };
        let Some(lane) = self.link.as_mut().and_then(|link| link.lane_mut(at)) else {
            return;
        };
        lane.credit = header.lane_credit;
        match frame {
            // Ours was said when the connection stood.
            Frame::Hello(_) => lane.up = lane.greeted,
            Frame::Lookup { request, name } => self.found(at, request, name),
            Frame::LookupReply {
                found: Some(found), ..
            } => self.memory.met.keep((at, found.context.into())),
            Frame::Grants { grants } => self.grants_came(at, &header, grants),
            Frame::Revoke {
                epoch,
                last,
                grants,
            } => {
                let named: Vec<_> = grants.iter().collect();
                for key in self.memory.keys.iter_mut() {
                    key.is_dead |= key.lane == at && named.contains(&key.grant.grant);
                }
                self.memory.epochs.keep((at, epoch));
                if last {
                    self.answer_revoke(at, epoch);
                }
            }
            Frame::Message(_) => self.message_came(at, &header),
            _ => {}
        }
    }

    /// Each name is one of its contexts'.
    fn found(&mut self, at: usize, request: u32, name: Name<'_>) {
        let known = NAMES.iter().position(|known| *known == name.as_str());
        let found = known.map(|slot| Found {
            context: ContextId {
                lcore: LcoreId(0),
                slot: slot as u16,
                generation: self.generation,
            },
            credit: MESSAGES,
        });
        let reply = Frame::LookupReply { request, found };
        self.say(at, &self.header(at), &reply);
    }

    fn grants_came(&mut self, at: usize, header: &Header, grants: List<'_, wire::Grant>) {
        self.memory.met.keep((at, header.src));
        for grant in grants.iter() {
            self.memory.keys.keep(Key {
                lane: at,
                grant,
                is_dead: false,
            });
        }
    }

    fn answer_revoke(&mut self, at: usize, epoch: Epoch) {
        let times = match self.temper.answers {
            Answers::AtOnce => 1,
            Answers::Never => 0,
            Answers::Twice => 2,
            Answers::Anyhow => self.dice.below(3),
        };
        for _ in 0..times {
            self.say(at, &self.header(at), &Frame::Revoked { epoch });
        }
    }

    /// Its receiver takes another, as a rule.
    fn message_came(&mut self, at: usize, header: &Header) {
        self.memory.met.keep((at, header.src));
        let slot = usize::from(header.dst.slot);
        let Some(lane) = self.link.as_mut().and_then(|link| link.lane_mut(at)) else {
            return;
        };
        let Some(taken) = lane.taken.get_mut(slot) else {
            return;
        };
        *taken += 1;
        let limit = MESSAGES + *taken;
        if self.dice.once_in(2) {
            self.credit(at, header.dst, limit);
        }
    }

    pub(super) fn credit(&mut self, at: usize, context: WireContext, limit: u32) -> bool {
        let limits = [CreditLimit { context, limit }];
        let limits = List::from(&limits[..]);
        self.say(at, &self.header(at), &Frame::Credit { limits })
    }

    pub(super) fn look_up(&mut self, at: usize) -> bool {
        let name = NAMES[self.dice.below(NAMES.len())];
        let name = Name::new(name).expect("a context has it");
        let request = self.dice.bits() as u32;
        self.say(at, &self.header(at), &Frame::Lookup { request, name })
    }
}
