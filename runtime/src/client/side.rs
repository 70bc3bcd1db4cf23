//! A client's context on its lcore: a service that carries out commands and passes events on.

use keyfence_mempool::ring::doorbell::Listener;
use keyfence_mempool::ring::spsc::{Consumer, Producer};
use keyfence_mempool::sync::{Arc, AtomicU64, Ordering};

use crate::client::command::{Command, Submit};
use crate::client::pending::Pending;
use crate::client::{ClientEvent, Locals};
use crate::engine::Context;
use crate::error::SubmitError;
use crate::event::Event;
use crate::op::Status;
use crate::service::{Service, Work};

/// Commands carried out in one step, so that other contexts get their turn.
const COMMANDS_A_STEP: usize = 32;

/// The lcore's side of a [`Client`](crate::Client).
#[derive(Debug)]
pub(crate) struct ClientSide {
    commands: Consumer<Command>,
    listener: Listener,
    events: Producer<ClientEvent>,
    /// Room for events that was seen; there may be more by now.
    room: usize,
    pending: Pending,
    heart: Heart,
    opened: bool,
    /// Events said to the client.
    pushed: u64,
    /// Which of them was the last that told of an operation of unknown end, or of one that was not sent behind such.
    unknown_at: u64,
}

/// When the client was last heard of.
#[derive(Debug)]
pub(super) struct Heart {
    beats: Arc<AtomicU64>,
    seen: u64,
    /// When `seen` was new; `None` before the first look.
    since_ns: Option<u64>,
    lease_ns: u64,
}

impl ClientSide {
    /// The other ends of the client's rings. All memory is allocated here.
    pub(super) fn new(
        commands: Consumer<Command>,
        listener: Listener,
        events: Producer<ClientEvent>,
        heart: Heart,
        ops: u32,
    ) -> Self {
        Self {
            commands,
            listener,
            events,
            room: 0,
            pending: Pending::new(ops),
            heart,
            opened: false,
            pushed: 0,
            unknown_at: 0,
        }
    }

    /// Says that the context stands, and which sessions do.
    fn open(&mut self, cx: &mut Context<'_>) {
        self.opened = true;
        cx.listen();
        self.push(ClientEvent::Opened { context: cx.id() });
        for peer in cx.peers() {
            self.push(ClientEvent::Event(Event::PeerUp(peer)));
        }
    }

    fn has_room(&mut self) -> bool {
        if self.room == 0 {
            self.room = self.events.capacity() - self.events.len();
        }
        self.room > 0
    }

    fn push(&mut self, event: ClientEvent) {
        assert!(
            self.has_room() && self.events.push(event).is_ok(),
            "nothing is said without room for it"
        );
        self.room -= 1;
        self.pushed += 1;
    }

    /// Carries out one command. At most one event comes of it now, for which there is room.
    fn obey(&mut self, cx: &mut Context<'_>, command: Command) {
        match command {
            Command::Submit {
                what,
                locals,
                token,
            } => self.submit(cx, &what, locals, token),
            Command::Alloc { len, token } => {
                let result = cx.alloc(len);
                self.push(ClientEvent::Allocated { token, result });
            }
            Command::Free(buf) => cx.free(buf),
            Command::Grant {
                buf,
                range,
                rights,
                holder,
                lease,
                token,
            } => {
                let result = cx.grant(&buf, range, rights, holder, lease);
                self.push(ClientEvent::GrantMade { token, buf, result });
            }
            Command::Revoke(grant) => {
                if let Err(why) = cx.revoke(grant) {
                    self.push(ClientEvent::RevokeRefused { grant, why });
                }
            }
            // What it has not heard of, it can't have meant.
            Command::Resume { taken } if taken >= self.unknown_at => cx.resume(),
            Command::Resume { .. } => {}
            Command::Flush { token } => {
                if let Err(why) = cx.flush(token) {
                    self.push(ClientEvent::FlushRefused { token, why });
                }
            }
            Command::Lookup { peer, name, token } => {
                if let Err(why) = cx.lookup(peer, name.as_str(), token) {
                    self.push(ClientEvent::LookupRefused { token, why });
                }
            }
            Command::MaxMessageBytes { to, token } => {
                let bytes = cx.max_message_bytes(&to);
                self.push(ClientEvent::MaxMessageBytes { token, bytes });
            }
            Command::Close => cx.close(),
        }
    }

    fn submit(&mut self, cx: &mut Context<'_>, what: &Submit, locals: Locals, token: u64) {
        let slot = self
            .pending
            .next()
            .expect("no command is taken without a slot");
        match locals.with(|ranges| submit(cx, what, ranges, slot.into())) {
            Ok(()) => self.pending.insert(token, locals),
            Err(why) => self.push(ClientEvent::Refused { token, why, locals }),
        }
    }
}

impl Service for ClientSide {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        if !self.opened {
            self.open(cx);
        }
        if self.commands.is_closed() || self.heart.has_stopped(cx.now_ns()) {
            cx.close();
            return Work::Busy;
        }
        // Looked at before the ring: with an empty ring behind it, the bell tells of what comes.
        let attached = self.listener.is_attached();
        let mut work = Work::Idle;
        for _ in 0..COMMANDS_A_STEP {
            // Completions that wait for room keep their slots, so a client that reads no events comes to a halt here.
            if !self.has_room() || self.pending.next().is_none() {
                break;
            }
            let Some(command) = self.commands.pop() else {
                // Messages that it drops are noticed by looking.
                let waits = attached && work == Work::Idle && !cx.holds_messages();
                return if waits { Work::Wait } else { work };
            };
            work = Work::Busy;
            self.obey(cx, command);
        }
        work
    }

    fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
        if !self.opened {
            self.open(cx);
            if matches!(event, Event::PeerUp(_)) {
                // It has just been said.
                return;
            }
        }
        let event = match event {
            Event::Completed(mut done) => {
                let (token, locals) = self.pending.take(done.token);
                done.token = token;
                if matches!(done.status, Status::Indeterminate | Status::NotSent) {
                    self.unknown_at = self.pushed + 1;
                }
                ClientEvent::Completed { done, locals }
            }
            other => ClientEvent::Event(other),
        };
        self.push(event);
    }

    fn takes_events(&mut self) -> bool {
        self.has_room()
    }
}

impl ClientSide {
    /// The context ends: the client finds itself closed, and no buffer here is a handle any more. Frees no memory.
    pub fn shut(&mut self) {
        self.events.close();
        // What a client that is gone has left there, nobody will take; to one that still is, it belongs.
        while self.events.take_back().is_some() {}
        self.empty_commands();
        self.pending.clear();
    }

    /// Buffers in commands that nobody will take are handles: without this they would stay out until the client is dropped.
    fn empty_commands(&mut self) {
        while self.commands.pop().is_some() {}
    }
}

impl Drop for ClientSide {
    fn drop(&mut self) {
        // Also what was sent while it was being shut.
        self.empty_commands();
    }
}

impl Heart {
    /// Of a client that counts its beats there.
    pub(super) fn new(beats: Arc<AtomicU64>, lease_ns: u64) -> Self {
        Self {
            beats,
            seen: 0,
            since_ns: None,
            lease_ns,
        }
    }

    fn has_stopped(&mut self, now_ns: u64) -> bool {
        // Relaxed: only whether it changes matters.
        let beats = self.beats.load(Ordering::Relaxed);
        let since_ns = match self.since_ns {
            Some(since_ns) if beats == self.seen => since_ns,
            _ => now_ns,
        };
        (self.seen, self.since_ns) = (beats, Some(since_ns));
        now_ns.saturating_sub(since_ns) > self.lease_ns
    }
}

/// Submits one operation; its token for the context is its slot.
fn submit(
    cx: &mut Context<'_>,
    what: &Submit,
    ranges: &[crate::engine::Local<'_>],
    slot: u64,
) -> Result<(), SubmitError> {
    match what {
        Submit::Write {
            import,
            offset,
            idempotent,
        } => match idempotent {
            true => cx.write_idempotent(import, *offset, ranges, slot),
            false => cx.write(import, *offset, ranges, slot),
        },
        Submit::WriteImmediate {
            import,
            offset,
            immediate,
        } => cx.write_with_immediate(import, *offset, ranges, *immediate, slot),
        Submit::Read { import, offset } => cx.read(import, *offset, ranges, slot),
        Submit::FetchAdd {
            import,
            offset,
            add,
        } => cx.fetch_add(import, *offset, *add, slot),
        Submit::CompareSwap {
            import,
            offset,
            expected,
            desired,
        } => cx.compare_swap(import, *offset, *expected, *desired, slot),
        Submit::Send { to, message } => cx.send(*to, message.as_slice(), slot),
        Submit::SendFrom { to } => cx.send_from(*to, ranges, slot),
    }
}
