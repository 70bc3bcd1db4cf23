//! A context's handle for another thread. What a service does by calls on its lcore, a [`Client`] does by commands through one ring and
//! events through another.
//!
//! Buffers are moved into a command and come back with its end, as io_uring's owned buffers do: a buffer that is in use has no
//! handle outside, so nothing that a thread drops right after a post can be touched by that post.

mod command;
mod error;
mod event;
mod ops;
mod pending;
mod side;

pub use command::Locals;
pub use error::{ClientLookupError, ClientSendError, CommandError};
pub use event::ClientEvent;

use core::ops::Range;

use keyfence_mempool::Buf;
use keyfence_mempool::ring::doorbell::{Bell, Doorbells};
use keyfence_mempool::ring::spsc::{self, Consumer, Producer};
use keyfence_mempool::sync::{Arc, AtomicU64, Ordering};
use keyfence_pmd::Rights;

use crate::client::command::Command;
pub(crate) use crate::client::side::ClientSide;
use crate::client::side::Heart;
use crate::engine::{InlineName, Lease};
use crate::ids::{GrantId, PeerId, RemoteContext};
use crate::wire::Name;

/// Sizes of a client's two rings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientConfig {
    /// Commands that the lcore has not taken; at least 1, rounded up to a power of two.
    pub commands: usize,
    /// Events that the client has not taken; at least 1, rounded up to a power of two. What finds no room stays with the context, which
    /// then takes no commands: a client that doesn't listen runs out of its own credits and holds up nobody else.
    pub events: usize,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            commands: 256,
            events: 512,
        }
    }
}

/// A context's handle for another thread. Made by [`Engine::open_client`](crate::Engine::open_client); owned by one thread at a time.
///
/// Every call sends a command and returns at once; none blocks, allocates or enters the kernel. What comes of it is told by
/// [`Client::poll_event`]. Commands are carried out in order. An error means that nothing was sent, and gives back what was moved in.
///
/// The context lives as long as its client does: each call is a heartbeat, and a client that makes none for
/// `timeouts.client_lease`, that is dropped, or whose thread panics is reclaimed by the engine (R10). Buffers and messages that it still holds then
/// are counted: they alone keep their bytes from being reused, until they are dropped (R1).
///
/// A buffer in use can't be touched, since it was moved:
///
/// ```compile_fail,E0382
/// # use keyfence::{Buf, Client, Import, Locals};
/// # fn post(client: &mut Client, import: &Import, buf: Buf) {
/// let _ = client.write(import, 0, Locals::one(buf, 0..8), 1);
/// drop(buf);
/// # }
/// ```
///
/// Before the post it can:
///
/// ```
/// # use keyfence::{Buf, Client, Import, Locals};
/// # fn post(client: &mut Client, import: &Import, buf: Buf) {
/// buf.write_at(0, b"eight by").expect("it has eight bytes");
/// let _ = client.write(import, 0, Locals::one(buf, 0..8), 1);
/// # }
/// ```
///
/// Nor can one buffer be in two operations at once:
///
/// ```compile_fail,E0382
/// # use keyfence::{Buf, Client, Import, Locals};
/// # fn twice(client: &mut Client, import: &Import, buf: Buf) {
/// let _ = client.write(import, 0, Locals::one(buf, 0..8), 1);
/// let _ = client.read(import, 8, Locals::one(buf, 0..8), 2);
/// # }
/// ```
///
/// Two buffers can:
///
/// ```
/// # use keyfence::{Buf, Client, Import, Locals};
/// # fn twice(client: &mut Client, import: &Import, buf: Buf, other: Buf) {
/// let _ = client.write(import, 0, Locals::one(buf, 0..8), 1);
/// let _ = client.read(import, 8, Locals::one(other, 0..8), 2);
/// # }
/// ```
pub struct Client {
    name: String,
    commands: Producer<Command>,
    /// Rung behind each command, and by its drop, which is behind that of `commands`.
    bell: Bell,
    events: Consumer<ClientEvent>,
    beats: Arc<AtomicU64>,
    beat: u64,
    /// Events taken.
    taken: u64,
}

impl Client {
    /// A client and its lcore's side. `ops` operations may be in flight; `peers` is how many the engine has.
    pub(crate) fn pair(
        name: &str,
        config: ClientConfig,
        bells: &Arc<Doorbells>,
        ops: u32,
        peers: usize,
        lease_ns: u64,
    ) -> (Self, ClientSide) {
        let (commands, command_end) = spsc::ring(config.commands);
        // Opening never waits: it says that it stands and which sessions do, and then the event that it was told first.
        let (event_end, events) = spsc::ring(config.events.max(peers + 2));
        let beats = Arc::new(AtomicU64::new(0));
        let (bell, listener) = Bell::new(bells);
        let heart = Heart::new(Arc::clone(&beats), lease_ns);
        let side = ClientSide::new(command_end, listener, event_end, heart, ops);
        let client = Self {
            name: name.to_owned(),
            commands,
            bell,
            events,
            beats,
            beat: 0,
            taken: 0,
        };
        (client, side)
    }

    /// The context's name for look-ups.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Says that the client lives. Every other call does so too; this is for a thread that has nothing else to say.
    pub fn beat(&mut self) {
        self.beat += 1;
        // Relaxed: the engine looks whether it changes; nothing else is read by it.
        self.beats.store(self.beat, Ordering::Relaxed);
    }

    /// The next event, if there is one. Also after the context's end, until all are taken.
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        self.beat();
        let event = self.events.pop();
        self.taken += u64::from(event.is_some());
        if let Some(ClientEvent::Opened { context }) = &event {
            self.bell.attach(context.slot.into());
        }
        event
    }

    /// Whether the context has ended or could not be opened, for whatever reason. Events may be left.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.events.is_closed()
    }

    /// Asks for a buffer of at least `len` bytes; answered by [`ClientEvent::Allocated`].
    ///
    /// # Errors
    /// [`CommandError`]; nothing was sent then.
    pub fn alloc(&mut self, len: usize, token: u64) -> Result<(), CommandError> {
        self.send_plain(Command::Alloc { len, token })
    }

    /// Gives a buffer back to its lcore. Dropping it does the same by way of the pool's depot, which costs a little more.
    ///
    /// # Errors
    /// [`CommandError`], with the buffer.
    pub fn free(&mut self, buf: Buf) -> Result<(), CommandError<Buf>> {
        self.send_command(Command::Free(buf), |command| match command {
            Command::Free(buf) => Some(buf),
            _ => None,
        })
    }

    /// Opens `range` of `buf` to one context of a peer; answered by [`ClientEvent::GrantMade`], which brings the buffer back.
    ///
    /// # Errors
    /// [`CommandError`], with the buffer.
    pub fn grant(
        &mut self,
        buf: Buf,
        range: Range<usize>,
        rights: Rights,
        holder: RemoteContext,
        lease: Lease,
        token: u64,
    ) -> Result<(), CommandError<Buf>> {
        let command = Command::Grant {
            buf,
            range,
            rights,
            holder,
            lease,
            token,
        };
        self.send_command(command, |command| match command {
            Command::Grant { buf, .. } => Some(buf),
            _ => None,
        })
    }

    /// Takes a grant back; it ends as [`Event::Zapped`](crate::Event::Zapped) or
    /// [`Event::GrantQuarantined`](crate::Event::GrantQuarantined), or at once as [`ClientEvent::RevokeRefused`].
    ///
    /// # Errors
    /// [`CommandError`]; nothing was sent then.
    pub fn revoke(&mut self, grant: GrantId) -> Result<(), CommandError> {
        self.send_plain(Command::Revoke(grant))
    }

    /// Goes on behind an operation of unknown end, as [`Context::resume`](crate::Context::resume) does: what is sent behind this command is posted, if every completion that says
    /// [`Status::Indeterminate`](crate::Status::Indeterminate) or [`Status::NotSent`](crate::Status::NotSent) so far was taken by [`Client::poll_event`]. If not, it does nothing: call it again behind the next one.
    ///
    /// # Errors
    /// [`CommandError`]; nothing was sent then.
    pub fn resume(&mut self) -> Result<(), CommandError> {
        let taken = self.taken;
        self.send_plain(Command::Resume { taken })
    }

    /// Asks for proof that everything retired before this command was carried out has ended; answered by
    /// [`Event::Flushed`](crate::Event::Flushed) or [`ClientEvent::FlushRefused`].
    ///
    /// # Errors
    /// [`CommandError`]; nothing was sent then.
    pub fn flush(&mut self, token: u64) -> Result<(), CommandError> {
        self.send_plain(Command::Flush { token })
    }

    /// Asks `peer` for its context named `name`; answered by [`Event::Resolved`](crate::Event::Resolved) or
    /// [`ClientEvent::LookupRefused`].
    ///
    /// # Errors
    /// [`ClientLookupError`]; nothing was sent then.
    pub fn lookup(
        &mut self,
        peer: PeerId,
        name: &str,
        token: u64,
    ) -> Result<(), ClientLookupError> {
        let name = InlineName::new(&Name::new(name)?);
        Ok(self.send_plain(Command::Lookup { peer, name, token })?)
    }

    /// Asks how long one message to `to` may be; answered by [`ClientEvent::MaxMessageBytes`].
    ///
    /// # Errors
    /// [`CommandError`]; nothing was sent then.
    pub fn max_message_bytes(&mut self, to: RemoteContext, token: u64) -> Result<(), CommandError> {
        self.send_plain(Command::MaxMessageBytes { to, token })
    }

    /// Ends the context behind everything sent before. Operations in flight are cut off as by a drop; the client stays, for the
    /// events that are left, until [`Client::is_closed`].
    ///
    /// # Errors
    /// [`CommandError`]; nothing was sent then. Dropping the client needs no room.
    pub fn close(&mut self) -> Result<(), CommandError> {
        self.send_plain(Command::Close)
    }

    fn send_plain(&mut self, command: Command) -> Result<(), CommandError> {
        self.send_command(command, |_| Some(()))
    }

    /// Sends a command, or gives back what `take` finds in it.
    fn send_command<T>(
        &mut self,
        command: Command,
        take: impl FnOnce(Command) -> Option<T>,
    ) -> Result<(), CommandError<T>> {
        self.beat();
        let moved_in =
            |command| take(command).expect("the command that was refused is the one sent");
        if self.is_closed() {
            return Err(CommandError::Closed(moved_in(command)));
        }
        let commands = self.commands.capacity();
        self.commands
            .push(command)
            .map_err(|command| CommandError::Full {
                commands,
                back: moved_in(command),
            })?;
        self.bell.ring();
        Ok(())
    }
}

impl core::fmt::Debug for Client {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Client")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
