//! Contexts and sessions: their ends come in time (R6), and after what they promise (R2).

use keyfence::ids::{ContextId, GrantId, PeerId, RemoteContext};
use keyfence::{EngineEvent, QuarantineReason};

use super::grants::GrantEnd;
use super::{Books, HostBook, Told};
use crate::sim::actor::NAMES;

pub struct ContextBook {
    pub name: String,
    pub ending: Ending,
    /// How often it has resumed behind operations of unknown end.
    pub resumes: u32,
    /// What its end has left there.
    pub quarantine: Option<Told>,
}

/// Where a context is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    Lives,
    /// Since that time of its engine's clock.
    Ends(u64),
    /// It was told to the engine's owner.
    Ended,
}

/// What steps and idle times may add to a bound.
pub const SLACK_NS: u64 = 500_000;

/// The last session with another engine.
#[derive(Clone, Copy, Default)]
pub struct Session {
    up_ns: u64,
    down_ns: u64,
    /// Whether one of its ends has closed: it ends in order, or by the time that takes.
    is_left: bool,
}

impl Books {
    pub fn living(&self, host: usize, name: &str) -> Option<ContextId> {
        let lives = |book: &&ContextBook| book.name == name && book.ending == Ending::Lives;
        let contexts = &self.hosts[host].contexts;
        contexts
            .iter()
            .find(|(_, book)| lives(book))
            .map(|(id, _)| *id)
    }

    /// A context is being ended, by whatever: what it has retires with it.
    pub fn ending(&mut self, host: usize, id: ContextId) {
        let now_ns = self.hosts[host].now_ns;
        let book = &mut self.hosts[host];
        if let Some(context) = book.contexts.get_mut(&id)
            && context.ending == Ending::Lives
        {
            context.ending = Ending::Ends(now_ns);
        }
        for grant in book.grants.values_mut() {
            if grant.owner == id {
                grant.retired_ns.get_or_insert(now_ns);
            }
        }
    }

    /// What the engine's owner is told.
    pub fn engine_event(&mut self, host: usize, event: &EngineEvent) {
        self.absorb();
        self.told(&(host, event));
        match event {
            EngineEvent::Opened { context, name } => self.opened(host, *context, name),
            EngineEvent::Reclaimed {
                context, took_ns, ..
            } => {
                self.tally.reclaims += 1;
                self.in_time(host, *context, *took_ns);
                self.reclaimed(host, *context);
            }
            EngineEvent::Quarantined {
                context,
                keys,
                bytes,
                why,
                ..
            } => {
                let (keys, bytes) = (*keys, *bytes);
                self.quarantine_told(host, *context, Told { keys, bytes });
                self.quarantined(host, *context, *why);
            }
            EngineEvent::ServicePanicked { context }
            | EngineEvent::Offence {
                context,
                is_expelled: true,
                ..
            } => self.ending(host, *context),
            EngineEvent::PeerUp(peer) => {
                let now_ns = self.world.now_ns();
                let other = self.host_of(host, *peer);
                let session = self.hosts[host].sessions.entry(other).or_default();
                session.up_ns = now_ns;
                session.is_left = false;
            }
            EngineEvent::PeerDown(peer) => {
                let other = self.host_of(host, *peer);
                if self.session_ended(host, other) {
                    return;
                }
                self.tally.sessions_lost += 1;
                self.session_lost(host, other);
                if self.liar_is_alone && self.is_engine(self.host_of(host, *peer)) {
                    self.fail(
                        "r5_bystanders",
                        format!("engine {host}: the session with {peer:?} is lost, and only another peer lies"),
                    );
                }
                if self.is_gentle {
                    self.fail(
                        "r5_gentle",
                        format!("engine {host}: the session with {peer:?} is lost"),
                    );
                }
            }
            EngineEvent::LcoreDied(lcore) => {
                self.fail("panics", format!("engine {host}: {lcore:?} died"))
            }
            _ => {}
        }
    }

    /// An engine closes its contexts, and its sessions behind them: neither end loses one.
    pub fn closing(&mut self, host: usize) {
        for name in NAMES {
            while let Some(id) = self.living(host, name) {
                self.ending(host, id);
            }
        }
        for other in 0..self.hosts.len() {
            self.hosts[host].sessions.entry(other).or_default().is_left = true;
            self.hosts[other].sessions.entry(host).or_default().is_left = true;
        }
    }

    /// Whether that was the orderly end of a session.
    fn session_ended(&mut self, host: usize, other: usize) -> bool {
        let now_ns = self.world.now_ns();
        let session = self.hosts[host].sessions.entry(other).or_default();
        session.down_ns = now_ns;
        session.is_left
    }

    /// A session that stood at both ends outlives each break of its lanes.
    fn session_lost(&mut self, host: usize, other: usize) {
        let theirs = self.hosts[other].sessions.get(&host).copied();
        let ours = self.hosts[host].sessions.get(&other).copied();
        let (ours, theirs) = (ours.unwrap_or_default(), theirs.unwrap_or_default());
        let stood_there = theirs.up_ns > theirs.down_ns || theirs.down_ns > ours.up_ns;
        if self.only_breaks && stood_there {
            self.fail(
                "r5_lanes_repaired",
                format!("engine {host}: the session with engine {other} is lost, and queue pairs broke alone"),
            );
        }
    }

    fn opened(&mut self, host: usize, id: ContextId, name: &str) {
        let book = ContextBook {
            name: name.to_owned(),
            ending: Ending::Lives,
            resumes: 0,
            quarantine: None,
        };
        if self.hosts[host].contexts.insert(id, book).is_some() {
            self.fail(
                "r7_names",
                format!("engine {host}: {id} is given out twice"),
            );
        }
    }

    fn in_time(&mut self, host: usize, id: ContextId, took_ns: u64) {
        let bound_ns = self.hosts[host].bound_ns;
        // By the books' own clock where they know when it began.
        let known = self.hosts[host].contexts.get(&id).map(|book| book.ending);
        let (now_ns, mut took_ns) = (self.hosts[host].now_ns, took_ns);
        if let Some(Ending::Ends(since_ns)) = known {
            took_ns = now_ns.saturating_sub(since_ns);
        }
        let began_ns = now_ns.saturating_sub(took_ns);
        if began_ns > self.hosts[host].disturbed_ns && took_ns > bound_ns + SLACK_NS {
            self.fail(
                "r6_bound",
                format!(
                    "engine {host}: {id} took {took_ns} ns to reclaim, and may take {bound_ns}"
                ),
            );
        }
    }

    /// R1, R2: with the notice nothing can touch its memory any more.
    fn reclaimed(&mut self, host: usize, id: ContextId) {
        self.ended(host, id);
        for range in self.hosts[host].memory.of(id) {
            if let Some(key) = self.ledger(host).first_live_key(range.clone()) {
                self.fail(
                    "r2_reclaimed",
                    format!("engine {host}: {id} is reclaimed, but {key}"),
                );
            }
            if let Some(open) = self.ledger(host).first_open_work(range.clone()) {
                self.fail(
                    "r2_reclaimed",
                    format!("engine {host}: {id} is reclaimed, but {open}"),
                );
            }
            self.hosts[host].memory.free(range.start);
        }
        let book = &mut self.hosts[host];
        for grant in book.grants.values_mut().filter(|grant| grant.owner == id) {
            if matches!(grant.end, GrantEnd::Open | GrantEnd::Quarantined) {
                grant.end = GrantEnd::Reclaimed;
            }
        }
        let HostBook { lens, grants, .. } = book;
        lens.retain(|_, name| grants[name].end == GrantEnd::Open);
    }

    fn quarantined(&mut self, host: usize, id: ContextId, why: QuarantineReason) {
        self.tally.quarantines += 1;
        self.in_time(host, id, 0);
        if self.is_gentle && why != QuarantineReason::HandleHeld {
            self.fail(
                "r5_gentle",
                format!("engine {host}: {id} is in quarantine: {why:?}"),
            );
        }
        self.ended(host, id);
        let book = &mut self.hosts[host];
        for (name, grant) in &mut book.grants {
            if grant.owner == id && grant.end == GrantEnd::Open {
                // Which of its keys were not proven is not said.
                grant.end = GrantEnd::Quarantined;
                book.lens.retain(|_, other| other != name);
            }
        }
    }

    /// R6: once.
    fn ended(&mut self, host: usize, id: ContextId) {
        self.hosts[host].suspects.retain(|(owner, _)| *owner != id);
        let known = self.hosts[host].contexts.get_mut(&id);
        let before = known.map(|book| core::mem::replace(&mut book.ending, Ending::Ended));
        if !matches!(before, Some(Ending::Lives | Ending::Ends(_))) {
            self.fail(
                "r6_once",
                format!("engine {host}: {id} ended, and was {before:?}"),
            );
        }
        let book = &mut self.hosts[host];
        book.ops.retain(|(by, _), _| *by != id);
        book.flushes.retain(|(by, _), _| *by != id);
    }

    /// R2: a context of a peer is said to be gone.
    pub fn gone(&mut self, host: usize, remote: &RemoteContext, told: Told) {
        self.gone_told(host, remote, told);
        let who = self.remote(host, remote);
        let known = self.hosts[who.host].contexts.get(&who.id);
        if let Some(book) = known
            && book.ending != Ending::Ended
            && self.sees_present_life(host, remote.peer)
        {
            let ending = book.ending;
            self.fail(
                "r2_gone",
                format!("engine {host}: {who:?} is said to be gone, and {ending:?}"),
            );
        }
    }

    /// A context hears that a session is lost: what it granted in it has ended.
    pub fn peer_down(&mut self, host: usize, id: ContextId, peer: PeerId) {
        let open = |grant: &&super::grants::GrantBook| {
            grant.owner == id && grant.to.peer == peer && grant.end == GrantEnd::Open
        };
        let left = self.hosts[host].grants.values().filter(open).count();
        if left > 0 {
            self.fail("r2_peer_down", format!("engine {host}: {id} hears that {peer:?} is down, and {left} grants to it have not ended"));
        }
    }

    /// Whether what an engine knows of a peer can only be of the peer's present life: nobody has started again.
    pub(super) fn sees_present_life(&self, host: usize, peer: PeerId) -> bool {
        self.hosts[self.host_of(host, peer)].life == 0
    }

    /// Whether a living context waits for the end of an operation, a flush or a grant that it took back.
    pub fn owes(&self) -> bool {
        self.hosts.iter().any(|host| host.owed().next().is_some())
    }

    /// R7, R3, R6: what a living context is owed has come by now.
    pub fn settled(&mut self) {
        self.absorb();
        for at in 0..self.hosts.len() {
            let owed: Vec<_> = self.hosts[at].owed().take(8).collect();
            if !owed.is_empty() {
                self.fail(
                    "r7_owed",
                    format!("engine {at}: nobody troubles it, and never came: {owed:?}"),
                );
            }
        }
    }

    /// R7: nothing is left of an engine when everything has ended.
    pub fn close(&mut self, host: usize) {
        self.absorb();
        let book = &self.hosts[host];
        let open = book
            .contexts
            .iter()
            .filter(|(_, context)| context.ending != Ending::Ended);
        let open: Vec<_> = open.map(|(id, _)| *id).collect();
        let keys = self.ledger(host).all_live_keys();
        if !open.is_empty() || keys > 0 {
            self.fail(
                "r7_rest",
                format!("engine {host}: at the end {open:?} live, and {keys} keys"),
            );
        }
    }
}

impl HostBook {
    fn lives(&self, id: ContextId) -> bool {
        let book = self.contexts.get(&id);
        book.is_some_and(|book| book.ending == Ending::Lives)
    }

    /// What living contexts wait for.
    fn owed(&self) -> impl Iterator<Item = Owed> + '_ {
        let ops = self.ops.keys().filter(|(by, _)| self.lives(*by));
        let flushes = self.flushes.keys().filter(|(by, _)| self.lives(*by));
        let retired = self.grants.iter().filter(|(_, grant)| {
            grant.end == GrantEnd::Open && grant.retired_ns.is_some() && self.lives(grant.owner)
        });
        let ops = ops.map(|(by, token)| Owed::Completion(*by, *token));
        let flushes = flushes.map(|(by, token)| Owed::Flushed(*by, *token));
        let retired = retired.map(|((_, id), grant)| Owed::Zapped(grant.owner, *id));
        ops.chain(flushes).chain(retired)
    }
}

/// Something that a context has not been told yet.
#[derive(Clone, Copy, Debug)]
#[expect(dead_code, reason = "what it is about is for the words of a failure")]
pub enum Owed {
    Completion(ContextId, u64),
    Flushed(ContextId, u64),
    Zapped(ContextId, GrantId),
}
