//! What a context does: each act is entered in the books as it is done.

use keyfence::ids::{LcoreId, PeerId, RemoteContext};
use keyfence::{Context, Import, Lease, Local, Rights, SubmitError};

use super::{Actor, MESSAGE_BYTES, NAMES};
use crate::sim::books::About;

impl Actor {
    pub(super) fn grant(&mut self, cx: &mut Context<'_>) {
        let Some(to) = self.pick(|it| &it.others) else {
            return;
        };
        let least = [64, 64, 3000, 3000, 50_000][self.dice.below(5)];
        let start = 8 * self.dice.below(5);
        let len = self.books.open().free_len(self.host, least);
        let Some(buf) = self.buffer(cx, start + len as usize) else {
            return;
        };
        buf.dma().zero();
        let rights = [Rights::ALL, Rights::ALL, Rights::WRITE, Rights::READ][self.dice.below(4)];
        let lease = [Lease::Configured, Lease::None][self.dice.below(2)];
        let range = start..start + len as usize;
        let granted = cx
            .grant(&buf, range.clone(), rights, to, lease)
            .or_else(|_| {
                // Atomics are not to be had on each device.
                let rights = Rights {
                    atomic: false,
                    ..rights
                };
                cx.grant(&buf, range.clone(), rights, to, lease)
            });
        if let Ok(id) = granted {
            let range = buf.address() + range.start as u64..buf.address() + range.end as u64;
            self.books
                .open()
                .granted(self.host, cx.id(), id, range, rights, to);
            self.grants.insert(id, buf);
            if self.dice.once_in(10) && cx.revoke(id).is_ok() {
                self.books
                    .open()
                    .revoked_by_owner(self.host, cx.id().lcore, id);
            }
        }
    }

    pub(super) fn revoke(&mut self, cx: &mut Context<'_>) {
        let count = self.grants.len();
        if count == 0 {
            return;
        }
        let at = self.dice.below(count);
        let id = *self.grants.keys().nth(at).expect("below their number");
        // The end of a lost session may have come first.
        if cx.revoke(id).is_ok() {
            self.books
                .open()
                .revoked_by_owner(self.host, cx.id().lcore, id);
        }
    }

    /// A write whose every word is its number, at a place of its own.
    pub(super) fn write(&mut self, cx: &mut Context<'_>, immediate: bool) {
        let Some(import) = self.pick(|it| &it.imports) else {
            return;
        };
        let most = [4, 60, 1000][self.dice.below(3)];
        let len = 8 * (1 + self.dice.below(most));
        let Some(buf) = self.buffer(cx, len) else {
            return;
        };
        let len = len.min(buf.capacity());
        let serial = self.books.open().serial();
        let words = serial.to_le_bytes().repeat(len / 8);
        buf.write_at(0, &words)
            .expect("it was just cut to the buffer");
        let lcore = cx.id().lcore;
        let place = self.place(&import, lcore, len as u64, serial);
        let Some((offset, about)) = place else { return };
        let half = 8 * (len / 16);
        let parts = [Local::new(&buf, 0..half), Local::new(&buf, half..len)];
        let from = if half > 0 && self.dice.once_in(3) {
            &parts[..]
        } else {
            &[Local::prefix(&buf, len)][..]
        };
        let is_plain = immediate || !self.dice.once_in(6);
        let written = match (immediate, is_plain) {
            (true, _) => cx.write_with_immediate(&import, offset, from, serial as u32, serial),
            (_, true) => cx.write(&import, offset, from, serial),
            (_, false) => cx.write_idempotent(&import, offset, from, serial),
        };
        let way = (import.owner, is_plain);
        self.entered(cx, written, serial, (about, len as u64), way);
        // The buffer is dropped: the operation keeps it.
    }

    /// Where a write goes; nobody looks for it in the memory of a host that is no engine.
    fn place(
        &self,
        import: &Import,
        lcore: LcoreId,
        len: u64,
        serial: u64,
    ) -> Option<(u64, About)> {
        let mut books = self.books.open();
        if !books.is_engine(books.remote(self.host, &import.owner).host) {
            return (len <= import.len).then_some((0, About::Import(import.id)));
        }
        let offset = books.place(self.host, lcore, import.id, len, serial)?;
        Some((offset, About::Stamped(import.id)))
    }

    pub(super) fn read(&mut self, cx: &mut Context<'_>) {
        let Some(import) = self.pick(|it| &it.imports) else {
            return;
        };
        let len = self.dice.below((import.len as usize).saturating_add(1));
        let Some(buf) = self.buffer(cx, len.max(1)) else {
            return;
        };
        let len = len.min(buf.capacity());
        let serial = self.books.open().serial();
        let read = cx.read(&import, 0, &[Local::prefix(&buf, len)], serial);
        let about = (About::Import(import.id), len as u64);
        self.entered(cx, read, serial, about, (import.owner, false));
    }

    pub(super) fn add(&mut self, cx: &mut Context<'_>) {
        let Some(import) = self.pick(|it| &it.imports) else {
            return;
        };
        let serial = self.books.open().serial();
        let added = cx.fetch_add(&import, 0, 1, serial);
        let about = (About::Add(import.id), 8);
        self.entered(cx, added, serial, about, (import.owner, true));
    }

    fn entered(
        &mut self,
        cx: &Context<'_>,
        submitted: Result<(), SubmitError>,
        serial: u64,
        about: (About, u64),
        way: (RemoteContext, bool),
    ) {
        let mut books = self.books.open();
        match (submitted, about.0) {
            (Ok(()), _) => books.submitted(self.host, cx.id(), serial, about, way),
            (Err(_), About::Stamped(import)) => {
                books.unplace(self.host, cx.id().lcore, import, serial)
            }
            (Err(_), _) => {}
        }
    }

    pub(super) fn send(&mut self, cx: &mut Context<'_>) {
        let Some(to) = self.pick(|it| &it.others) else {
            return;
        };
        let (from, target) = {
            let books = self.books.open();
            (books.who(self.host, cx.id()), books.remote(self.host, &to))
        };
        let number = self.books.open().next_number(from, target, to.session);
        let mut words = number.to_le_bytes().to_vec();
        words.extend(u64::from(from.life).to_le_bytes());
        words.resize(MESSAGE_BYTES + self.dice.below(60), 0);
        let serial = self.books.open().serial();
        let sent = if self.dice.once_in(2) {
            cx.send(to, &words, serial)
        } else {
            match self.buffer(cx, words.len()) {
                Some(buf) => {
                    buf.write_at(0, &words).expect("it has as many bytes");
                    cx.send_from(to, &[Local::prefix(&buf, words.len())], serial)
                }
                None => Err(SubmitError::ContextClosed),
            }
        };
        if sent.is_err() {
            self.books.open().unsend(from, target);
        }
        let about = (About::Message(target, number), words.len() as u64);
        self.entered(cx, sent, serial, about, (to, true));
    }

    pub(super) fn close(&mut self, cx: &mut Context<'_>) {
        if self.dice.once_in(20) {
            self.books.open().ending(self.host, cx.id());
            cx.close();
        }
    }

    pub(super) fn flush(&mut self, cx: &mut Context<'_>) {
        let token = self.books.open().serial();
        if cx.flush(token).is_ok() {
            self.books.open().flushing(self.host, cx.id(), token);
        }
    }

    pub(super) fn look_up(&mut self, cx: &mut Context<'_>) {
        let name = NAMES[self.dice.below(NAMES.len())];
        let peer = PeerId(self.dice.below(self.peers) as u16);
        // Where no session stands there is nobody to ask.
        let _ = cx.lookup(peer, name, 0);
    }
}
