//! A context that does this and that, and enters in the books what it does and is told.

mod acts;
mod shelf;
mod temper;

use std::collections::BTreeMap;

use keyfence::ids::{GrantId, RemoteContext};
use keyfence::{Buf, Context, Event, Import, Message, Service, Status, Work};

use super::books::{Shared, Told};
use crate::random::Random;
use shelf::Kept;
pub use shelf::Shelf;
use temper::Act;
pub use temper::Temper;

/// What memory is filled with when its grant has ended: what else is found in it later came too late.
const QUIET: u8 = 0xd7;

/// Names that contexts of an engine have.
pub const NAMES: [&str; 4] = ["w", "x", "y", "z"];

/// Bytes of a message's own words: its number, its sender's and a serial.
const MESSAGE_BYTES: usize = 16;

pub struct Actor {
    shelf: Shelf,
    host: usize,
    peers: usize,
    dice: Random,
    temper: Temper,
    books: Shared,
    others: Vec<RemoteContext>,
    imports: Vec<Import>,
    grants: BTreeMap<GrantId, Buf>,
    /// Buffers whose grant has ended, and what they are filled with since.
    watched: Vec<Buf>,
    hoard: Vec<Message>,
    deaf_polls: u64,
}

impl Actor {
    pub fn new(
        host: usize,
        peers: usize,
        temper: Temper,
        seed: u64,
        books: Shared,
        shelf: Shelf,
    ) -> Self {
        Self {
            shelf,
            host,
            peers,
            temper,
            books,
            dice: Random::new(seed, 3),
            others: Vec::new(),
            imports: Vec::new(),
            grants: BTreeMap::new(),
            watched: Vec::new(),
            hoard: Vec::new(),
            deaf_polls: 0,
        }
    }

    fn pick<T: Copy>(&mut self, from: fn(&Self) -> &Vec<T>) -> Option<T> {
        let count = from(self).len();
        (count > 0).then(|| {
            let at = self.dice.below(count);
            from(self)[at]
        })
    }

    fn buffer(&mut self, cx: &mut Context<'_>, bytes: usize) -> Option<Buf> {
        let buf = cx.alloc(bytes).ok()?;
        let range = buf.address()..buf.address() + buf.capacity() as u64;
        self.books.open().allocated(self.host, cx.id(), range);
        Some(buf)
    }

    fn received(&mut self, cx: &Context<'_>, message: Message) {
        let mut words = [0; MESSAGE_BYTES];
        let mut books = self.books.open();
        let sender = books.remote(self.host, &message.from());
        if !books.is_engine(sender.host) {
            // Whatever it says.
        } else if message.read_at(0, &mut words) {
            let word =
                |at: usize| u64::from_le_bytes(words[at..at + 8].try_into().expect("8 bytes"));
            let from = super::books::Who {
                life: word(8) as u32,
                ..sender
            };
            let to = books.who(self.host, cx.id());
            books.received(from, to, word(0));
        } else {
            books.fail(
                "messages",
                format!("{} got a message of {} bytes", cx.id(), message.len()),
            );
        }
        drop(books);
        self.hoard.push(message);
    }

    fn zapped(&mut self, cx: &Context<'_>, id: GrantId) {
        let buf = self.grants.remove(&id);
        self.books
            .open()
            .zapped(self.host, cx.id(), id, buf.as_ref());
        if let Some(buf) = buf {
            buf.dma().fill(QUIET);
            self.watched.push(buf);
        }
    }

    /// R1, byte by byte.
    fn scan(&mut self, cx: &Context<'_>) {
        for buf in self.watched.drain(..) {
            if let Some(at) = buf.dma().first_not(QUIET) {
                let what = format!(
                    "engine {}: {}: byte {at} of a zapped grant changed",
                    self.host,
                    cx.id()
                );
                self.books.open().fail("r1_no_late_access", what);
            }
        }
    }

    fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.dice.below(1_000_000) < per_million as usize
    }
}

impl Drop for Actor {
    /// Sometimes others still have what was the context's.
    fn drop(&mut self) {
        if self.temper.lends && !self.books.open().winding_down {
            let bufs = core::mem::take(&mut self.grants).into_values();
            self.shelf
                .keep(bufs.chain(self.watched.drain(..)).map(Kept::Buf));
            self.shelf.keep(self.hoard.drain(..).map(Kept::Message));
        }
    }
}

impl Service for Actor {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        self.deaf_polls = self.deaf_polls.saturating_sub(1);
        if self.books.open().winding_down {
            self.deaf_polls = 0;
            self.hoard.clear();
            self.scan(cx);
            return Work::Idle;
        }
        if self.others.is_empty() && self.dice.once_in(4) {
            self.look_up(cx);
        }
        if self.chance(self.temper.panic_per_million) {
            self.books.open().ending(self.host, cx.id());
            // Past the hook that tells of panics: this one is no news.
            std::panic::resume_unwind(Box::new("told to panic"));
        }
        if self.chance(self.temper.deafness_per_million) {
            self.deaf_polls = self.dice.below(400) as u64;
        }
        match self.temper.choose(&mut self.dice) {
            Act::Grant => self.grant(cx),
            Act::Revoke => self.revoke(cx),
            Act::Write => self.write(cx, false),
            Act::Immediate => self.write(cx, true),
            Act::Read => self.read(cx),
            Act::Add => self.add(cx),
            Act::Send => self.send(cx),
            Act::Flush => self.flush(cx),
            Act::Close => self.close(cx),
            Act::LookUp => self.look_up(cx),
            Act::GiveBack => {
                self.scan(cx);
                self.hoard.clear();
            }
            Act::Nothing => return Work::Idle,
        }
        Work::Busy
    }

    fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
        match event {
            Event::Resolved {
                context: Some(remote),
                ..
            } if !self.others.contains(&remote) => self.others.push(remote),
            Event::Granted(import) => {
                self.books.open().imported(self.host, cx.id(), &import);
                self.imports.push(import);
            }
            Event::Revoked(id) => {
                self.books.open().import_revoked(self.host, cx.id(), id);
                self.imports.retain(|import| import.id != id);
            }
            Event::Zapped(id) => self.zapped(cx, id),
            Event::GrantQuarantined(id) => {
                self.books.open().grant_quarantined(self.host, cx.id(), id);
                // Not watched: a late access is what it is quarantined for.
                self.grants.remove(&id);
            }
            Event::Landed {
                grant, immediate, ..
            } => {
                let buf = self.grants.get(&grant);
                self.books
                    .open()
                    .landed(self.host, cx.id(), grant, immediate, buf);
            }
            Event::Completed(done) => {
                self.books.open().completed(self.host, cx.id(), &done);
                // At the first one or later: what it goes on to submit meanwhile is not sent either.
                if done.status == Status::NotSent && self.dice.once_in(4) {
                    cx.resume();
                    self.books.open().resumed(self.host, cx.id());
                }
            }
            Event::Message(message) => self.received(cx, message),
            Event::Flushed { token, quarantined } => {
                self.books
                    .open()
                    .flushed(self.host, cx.id(), token, quarantined)
            }
            Event::ContextGone {
                context,
                quarantined_keys: keys,
                quarantined_bytes: bytes,
            } => {
                let told = Told { keys, bytes };
                self.books.open().gone(self.host, &context, told);
                self.others.retain(|other| *other != context);
            }
            Event::PeerDown(peer) => {
                self.books.open().peer_down(self.host, cx.id(), peer);
                self.others.retain(|other| other.peer != peer);
            }
            _ => {}
        }
    }

    fn takes_events(&mut self) -> bool {
        self.deaf_polls == 0
    }
}
