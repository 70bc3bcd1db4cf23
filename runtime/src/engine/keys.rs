//! The keys of grants, from the bind to the death, and what their ends are to their grants.

use keyfence_pmd::Rkey;

use crate::engine::command::{ToControl, Unrepairable};
use crate::engine::state::Core;
use crate::event::Event;
use crate::grant::keys::Key;
use crate::grant::table::Fate;
use crate::ids::{GrantId, LaneId};
use crate::lane::queue::Request;
use crate::reclaim::{self, ContextIx, KeyEnd, KeyIx, KeyState, Scope, Transition};

impl Core {
    /// Has a key made for a grant on the lane that it is on, by a bind or off the lcore. There must be room for it.
    pub(super) fn begin_key(&mut self, id: GrantId) {
        let grant = self.grants.at(id.slot);
        let (context, lane) = (ContextIx(grant.context), grant.lane);
        let window = (!self.caps.regions).then(|| self.take_window(lane));
        let rkey = window.map_or(Rkey(0), |window| {
            self.lane(lane).windows[window as usize].key()
        });
        let key = Key {
            grant: id.slot,
            lane,
            window,
            rkey,
            reminded: false,
            listed: false,
            charged: false,
        };
        let name = self.keys.insert(key).expect("admitted before");
        let key = name.ix();
        self.grants.at_mut(id.slot).key_begun(key);
        let (scope, bound) = match window {
            Some(_) => (Scope::Queue, true),
            None => (Scope::Domain, false),
        };
        self.drive(reclaim::Event::Bind {
            key,
            context,
            lane,
            scope,
        });
        if bound {
            self.ask(lane, Request::Grant(id));
        } else {
            self.ask_for_region(name);
        }
    }

    fn take_window(&mut self, lane: LaneId) -> u32 {
        let window = self.lane_mut(lane).free_windows.pop();
        window.expect("admitted before")
    }

    /// The name that the holder has for a key that is not dead.
    pub(super) fn grant_of(&self, key: KeyIx) -> GrantId {
        self.grants.id(self.keys.at(key).grant)
    }

    pub(super) fn key_changed(&mut self, change: Transition) {
        self.trace.key(self.now_ns, &change);
        let slot = self.keys.at(change.key).grant;
        let grant = self.grants.at_mut(slot);
        if let Some(end) = change.ended() {
            let late = end == KeyEnd::LateProof;
            grant.key_proven(late);
            self.stats.late_proofs += u64::from(late);
        }
        if change.quarantined() {
            grant.key_quarantined();
        }
        if let Some(fate) = grant.settle() {
            self.grant_settled(slot, fate);
        }
        self.count_for_peer(&change, slot);
        if change.freed() {
            self.key_freed(change.key);
        }
    }

    /// Marks a grant as taken back, for whatever reason. Returns whether it was not before.
    pub(super) fn take_back(&mut self, slot: u32) -> bool {
        let grant = self.grants.at_mut(slot);
        if core::mem::replace(&mut grant.retired, true) {
            return false;
        }
        // Its keys may have ended before.
        if let Some(fate) = grant.settle() {
            self.grant_settled(slot, fate);
            self.free_grant_if_dead(slot);
        }
        true
    }

    fn grant_settled(&mut self, slot: u32, fate: Fate) {
        let id = self.grants.id(slot);
        let context = self.grants.at(slot).context;
        match fate {
            Fate::Zapped => {
                self.grant_ended(slot);
                self.stats.grants_zapped += 1;
                self.tell(context, Event::Zapped(id));
            }
            Fate::Quarantined => {
                self.stats.grants_quarantined += 1;
                self.tell(context, Event::GrantQuarantined(id));
            }
            Fate::ProvenLate => {
                self.grant_ended(slot);
                self.release_late(context);
            }
        }
    }

    /// All keys of a grant are proven ended: its memory and quota are its owner's again.
    fn grant_ended(&mut self, slot: u32) {
        let grant = *self.grants.at(slot);
        self.unhold(grant.pool, grant.buf);
        let quota = &mut self.contexts.get_mut(grant.context).quota;
        quota.grants.give(1);
        quota.exposed_bytes.give(grant.len);
        self.peers[grant.holder.peer.0 as usize]
            .quota
            .exposed_bytes
            .give(grant.len);
    }

    /// R8: a peer that acknowledges too little loses the lane, which is repaired or ends its session: the end of its queue pair alone makes its parked values
    /// worthless.
    fn count_for_peer(&mut self, change: &Transition, grant: u32) {
        let lane = self.keys.at(change.key).lane;
        let peer = self.grants.at(grant).holder.peer;
        // One that a break has ended, and not its owner, waits for no word that the peer is late with.
        let charged = change.to == KeyState::Parked && self.grants.at(grant).retired;
        let was_charged = core::mem::replace(&mut self.keys.at_mut(change.key).charged, charged);
        let quota = &mut self.peers[peer.0 as usize].quota;
        let open = |state: KeyState| !state.is_proven() && state != KeyState::Unproven;
        quota.open_keys += u64::from(open(change.to));
        quota.open_keys -= u64::from(open(change.from));
        quota.parked_keys += u64::from(charged);
        quota.parked_keys -= u64::from(was_charged);
        if charged && quota.parked_keys > quota.parked_keys_limit {
            self.end_parking_on(lane);
        }
    }

    /// The end of what they were valid on alone makes values worthless: of the queue pair, or of the session's domain.
    fn end_parking_on(&mut self, lane: LaneId) {
        let entry = self.lane(lane);
        let lane = match self.caps.regions {
            true => self.carrier(entry.name(), entry.session),
            false => Some(lane),
        };
        let Some(lane) = lane.filter(|lane| self.lane(*lane).is_sound()) else {
            return;
        };
        self.stats.peers_past_parked += 1;
        match self.caps.regions {
            true => self.give_up_session(lane, Unrepairable::Parked),
            false => self.break_lane(lane),
        }
    }

    /// The key is dead: R4 allows its window and slot to be used again, and its grant's slot if it was the last one.
    fn key_freed(&mut self, key: KeyIx) {
        #[cfg(feature = "plant")]
        let late = self.machine.needs_late_invalidate(key);
        #[cfg(not(feature = "plant"))]
        let late = false;
        let name = self.keys.id(key);
        let Key {
            grant,
            lane,
            window,
            rkey,
            ..
        } = self.keys.remove(key);
        self.grants.at_mut(grant).key_dead(key);
        self.free_grant_if_dead(grant);
        let Some(place) = window else {
            self.outbox.push(ToControl::KeyDead(name));
            return;
        };
        let Some(entry) = self.lanes[lane.0 as usize].as_deref_mut() else {
            return;
        };
        let window = &mut entry.windows[place as usize];
        window.next_tag = window.next_tag.wrapping_add(1);
        if window.deallocated {
            entry.spent_windows.push(place);
            self.replace_windows(lane);
        } else {
            window.stale = late.then_some(rkey);
            entry.free_windows.push(place);
        }
    }

    fn free_grant_if_dead(&mut self, slot: u32) {
        if self.grants.at(slot).is_dead() {
            let grant = self.grants.remove(slot);
            let peer = &mut self.peers[grant.holder.peer.0 as usize];
            peer.quota.grants.give(1);
        }
    }
}
