//! A client that does everything that clients do, one thing at a time, by turns. It is called between the lcores' steps.

use keyfence::ids::{GrantId, LcoreId, PeerId, RemoteContext};
use keyfence::pmd::Device;
use keyfence::{
    Buf, Client, ClientConfig, ClientEvent, CommandError, Event, Import, Lease, Locals, Rights,
    Status,
};

use crate::pair::Side;

/// Things that it does by turns.
const TURNS: u64 = 11;

pub struct Caller {
    client: Client,
    owner: Option<RemoteContext>,
    import: Option<Import>,
    buf: Option<Buf>,
    grant: Option<GrantId>,
    waits: bool,
    /// Things done, and whatever went otherwise.
    pub done: u64,
    pub failed: u64,
}

impl Caller {
    pub fn new<D: Device>(side: &mut Side<D>, name: &str) -> Self {
        let config = ClientConfig {
            commands: 16,
            events: 64,
        };
        let client = side.engine.open_client(LcoreId(0), name, 1, config);
        Self {
            client: client.unwrap(),
            owner: None,
            import: None,
            buf: None,
            grant: None,
            waits: false,
            done: 0,
            failed: 0,
        }
    }

    /// Whether it has all that it works with.
    pub fn is_ready(&self) -> bool {
        self.owner.is_some() && self.import.is_some()
    }

    pub fn step(&mut self) {
        while let Some(event) = self.client.poll_event() {
            self.hear(event);
        }
        if !self.waits {
            self.waits = self.ask();
        }
    }

    /// Sends the next command, if there is what it takes; whether something will come of it.
    fn ask(&mut self) -> bool {
        let client = &mut self.client;
        let Some(owner) = self.owner else {
            return client.lookup(PeerId(0), "owner", 0).is_ok();
        };
        let Some(import) = self.import else {
            return false;
        };
        let turn = self.done % TURNS;
        if turn > 0 && self.buf.is_none() {
            self.failed += 1;
            return false;
        }
        let locals = |buf: &mut Option<Buf>| Locals::one(buf.take().expect("it came back"), 0..64);
        let buf = &mut self.buf;
        match turn {
            0 => client.alloc(64, 0).is_ok(),
            1 => client.write(&import, 0, locals(buf), 1).is_ok(),
            2 => client.read(&import, 64, locals(buf), 2).is_ok(),
            3 => client
                .write_with_immediate(&import, 128, locals(buf), 7, 3)
                .is_ok(),
            4 => client.fetch_add(&import, 256, 1, 4).is_ok(),
            5 => client.compare_swap(&import, 264, 0, 0, 5).is_ok(),
            6 => client.send(owner, b"from a client", 6).is_ok(),
            7 => client.send_from(owner, locals(buf), 7).is_ok(),
            8 => {
                let buf = buf.take().expect("it came back");
                let (rights, lease) = (Rights::READ, Lease::None);
                client.grant(buf, 0..64, rights, owner, lease, 8).is_ok()
            }
            9 => {
                let grant = self.grant.take().expect("it was made");
                // The flush hastens the proof, and is one of the things.
                client.revoke(grant).is_ok() && client.flush(9).is_ok()
            }
            _ => {
                let buf = buf.take().expect("it came back");
                client.free(buf).is_ok() && client.max_message_bytes(owner, 10).is_ok()
            }
        }
    }

    /// Ends its context, with something under way.
    pub fn close(&mut self) -> Result<(), CommandError> {
        self.client.close()
    }

    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Gives back what it has, and what still comes.
    pub fn forget(&mut self) {
        self.buf = None;
        while self.client.poll_event().is_some() {}
    }

    fn hear(&mut self, event: ClientEvent) {
        let good = match event {
            ClientEvent::Opened { .. } | ClientEvent::Event(Event::PeerUp(_)) => return,
            ClientEvent::Event(Event::Granted(import)) => {
                self.import = Some(import);
                return;
            }
            ClientEvent::Event(Event::Resolved { context, .. }) => {
                self.owner = context;
                self.waits = false;
                return;
            }
            // The flush's answer comes behind it.
            ClientEvent::Event(Event::Zapped(_)) => return,
            ClientEvent::Event(Event::Flushed { quarantined, .. }) => quarantined == 0,
            ClientEvent::Allocated { result, .. } => {
                self.buf = result.ok();
                self.buf.is_some()
            }
            ClientEvent::Completed { done, locals } => {
                if let Some(buf) = locals.into_buf() {
                    self.buf = Some(buf);
                }
                done.status == Status::Ok
            }
            ClientEvent::GrantMade { buf, result, .. } => {
                self.buf = Some(buf);
                self.grant = result.ok();
                self.grant.is_some()
            }
            ClientEvent::MaxMessageBytes { bytes, .. } => bytes.is_some(),
            _ => false,
        };
        self.waits = false;
        self.done += u64::from(good);
        self.failed += u64::from(!good);
    }
}
