//! Clients that hang: each grants memory to a worker of the other side and is not heard of again. Its lease runs out, and the engine reclaims it while the worker uses the grant (R10).

use keyfence::ids::{ContextId, RemoteContext};
use keyfence::pmd::Device;
use keyfence::{Buf, Client, ClientEvent, Event, Lease, Rights};

use super::board::Board;
use super::chaos::Timer;
use super::pattern::{Fill, identity};
use super::scene::Scene;
use super::worker::small_bytes;
use crate::random::Random;

/// Clients at a time.
const MOST: usize = 4;

/// How long one may take to have made its grant; then it is given up.
const PATIENCE_NS: u64 = 2_000_000_000;

/// How its contexts' names begin.
pub const NAME: &str = "hang-";

/// The schedule, and the clients.
pub struct Hangs {
    timer: Timer,
    random: Random,
    clients: Vec<Hung>,
    made: u64,
    /// Contexts that hung, and were reclaimed when their leases had run out.
    pub reclaimed: u64,
}

/// A client on its way to hang.
struct Hung {
    name: String,
    client: Option<Client>,
    side: usize,
    partner: usize,
    context: Option<ContextId>,
    buf: Option<Buf>,
    holder: Option<RemoteContext>,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// It beats, and works towards its grant.
    Lives { until_ns: u64 },
    /// It does nothing more.
    Hangs { since_ns: u64 },
    /// It has come to nothing: its client is dropped, and its context ends for that.
    Over,
}

impl Hangs {
    /// Begins at `now_ns`.
    pub fn new(board: &Board, now_ns: u64) -> Self {
        let load = &board.load;
        Self {
            timer: Timer::new(load.troubles.hangs_per_s, now_ns),
            random: Random::new(load.seed, u64::MAX - 2),
            clients: Vec::new(),
            made: 0,
            reclaimed: 0,
        }
    }

    /// Opens one if it is due, and goes on with those that there are.
    pub fn turn<D: Device>(&mut self, scene: &mut Scene<D>, now_ns: u64) {
        if self.clients.len() < MOST && self.timer.is_due(now_ns) {
            let side = self.random.below(2);
            let spared = scene.board.load.bystanders as usize;
            let members = scene.board.sides[1 - side].members.len();
            let partner = spared + self.random.below(members - spared);
            self.made += 1;
            let name = format!("{NAME}{}", self.made);
            self.clients.push(Hung {
                client: Some(scene.open_client(side, partner, &name)),
                name,
                side,
                partner,
                context: None,
                buf: None,
                holder: None,
                phase: Phase::Lives {
                    until_ns: now_ns + PATIENCE_NS,
                },
            });
        }
        self.go_on(scene, now_ns);
    }

    /// Goes on with those that there are. Whether there is none.
    pub fn go_on<D: Device>(&mut self, scene: &mut Scene<D>, now_ns: u64) -> bool {
        for one in &mut self.clients {
            one.turn(scene, now_ns);
        }
        self.clients.is_empty()
    }

    /// A context of one was opened.
    pub fn opened(&mut self, name: &str, context: ContextId) {
        let mut clients = self.clients.iter_mut();
        if let Some(one) = clients.find(|one| one.name == name) {
            one.context = Some(context);
        }
    }

    /// A context of one could not be opened.
    pub fn not_opened(&mut self, name: &str) {
        self.clients.retain(|one| one.name != name);
    }

    /// Whether a context is one of these.
    pub fn has(&self, side: usize, context: ContextId) -> bool {
        self.position(side, context).is_some()
    }

    fn position(&self, side: usize, context: ContextId) -> Option<usize> {
        let is_it = |one: &Hung| (one.side, one.context) == (side, Some(context));
        self.clients.iter().position(is_it)
    }

    /// A context that is one of these has ended.
    ///
    /// # Errors
    /// If its lease had not run out.
    pub fn ended(
        &mut self,
        side: usize,
        context: ContextId,
        lease_ns: u64,
        now_ns: u64,
    ) -> Result<(), String> {
        let at = self.position(side, context).expect("it is one of these");
        let hung_ns = match self.clients.swap_remove(at).phase {
            Phase::Lives { .. } => 0,
            Phase::Hangs { since_ns } => now_ns.saturating_sub(since_ns),
            Phase::Over => return Ok(()),
        };
        if hung_ns < lease_ns {
            return Err(format!(
                "client {context} of side {side} was reclaimed when it had hung for {} ms, and its lease is {} ms",
                hung_ns / 1_000_000,
                lease_ns / 1_000_000
            ));
        }
        self.reclaimed += 1;
        Ok(())
    }
}

impl Hung {
    fn turn<D: Device>(&mut self, scene: &mut Scene<D>, now_ns: u64) {
        let Phase::Lives { until_ns } = self.phase else {
            return;
        };
        while matches!(self.phase, Phase::Lives { .. })
            && let Some(event) = self.client.as_mut().and_then(Client::poll_event)
        {
            if self.heard(scene, event, now_ns).is_none() {
                self.phase = Phase::Over;
            }
        }
        if now_ns >= until_ns && matches!(self.phase, Phase::Lives { .. }) {
            self.phase = Phase::Over;
        }
        if self.phase == Phase::Over {
            (self.client, self.buf) = (None, None);
        }
    }

    /// Takes the next step; none if there is no way on.
    fn heard<D: Device>(
        &mut self,
        scene: &mut Scene<D>,
        event: ClientEvent,
        now_ns: u64,
    ) -> Option<()> {
        let client = self.client.as_mut()?;
        match event {
            ClientEvent::Opened { context } => {
                self.context = Some(context);
                client.alloc(small_bytes(&scene.board.load), 0).ok()?;
            }
            ClientEvent::Event(Event::PeerUp(peer)) if scene.is_other(self.side, peer) => {
                let name = scene.board.name_of(self.partner);
                client.lookup(peer, &name, 0).ok()?;
            }
            ClientEvent::Allocated { result, .. } => {
                self.buf = Some(result.ok()?);
                self.grant(scene)?;
            }
            ClientEvent::Event(Event::Resolved { context, .. }) => {
                self.holder = Some(context?);
                self.grant(scene)?;
            }
            // The buffer is dropped: the grant holds its bytes.
            ClientEvent::GrantMade { result, .. } => {
                result.ok()?;
                self.phase = Phase::Hangs { since_ns: now_ns };
            }
            ClientEvent::LookupRefused { .. } => return None,
            _ => {}
        }
        Some(())
    }

    fn grant<D: Device>(&mut self, scene: &Scene<D>) -> Option<()> {
        let (Some(context), Some(holder)) = (self.context, self.holder) else {
            return Some(());
        };
        let Some(buf) = self.buf.take() else {
            return Some(());
        };
        let owner = identity(self.side, context);
        let bytes = small_bytes(&scene.board.load);
        let fill = Fill { owner, number: 0 };
        fill.words().fill(&buf.dma(), 0..bytes);
        let owners = &mut scene.board.sides[self.side].tally().owners;
        owners.insert(buf.address(), owner);
        let client = self.client.as_mut()?;
        let made = client.grant(
            buf,
            0..bytes,
            Rights::READ_WRITE,
            holder,
            Lease::Configured,
            0,
        );
        made.ok()
    }
}
