//! A context that does this and that.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use keyfence::ids::{GrantId, PeerId, RemoteContext};
use keyfence::{Buf, Context, Event, Import, Lease, Local, Message, Rights, Service, Work};
use keyfence_mempool::sync::Arc;

use super::NAMES;
use super::books::{Books, Dice};

/// What a granted buffer is filled with once its grant has ended: whatever else is found in it later landed too late.
const PATTERN: u8 = 0xd7;

pub struct Worker {
    dice: Dice,
    books: Arc<Mutex<Books>>,
    token: u64,
    others: Vec<RemoteContext>,
    imports: Vec<Import>,
    grants: BTreeMap<GrantId, Buf>,
    /// Buffers whose grant has ended, under watch.
    watched: Vec<Buf>,
    kept: Vec<Message>,
    flushes: u64,
}

impl Worker {
    pub fn new(seed: u64, books: Arc<Mutex<Books>>) -> Self {
        Self {
            dice: Dice(seed),
            books,
            token: 0,
            others: Vec::new(),
            imports: Vec::new(),
            grants: BTreeMap::new(),
            watched: Vec::new(),
            kept: Vec::new(),
            flushes: 0,
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap()
    }

    fn pick<T: Copy>(&mut self, from: fn(&Self) -> &Vec<T>) -> Option<T> {
        let count = from(self).len() as u64;
        (count > 0).then(|| {
            let at = self.dice.below(count) as usize;
            from(self)[at]
        })
    }

    fn buffer(&mut self, cx: &mut Context<'_>) -> Option<Buf> {
        let bytes = [64, 4096, 4096, 200_000][self.dice.below(4) as usize];
        let buf = cx.alloc(bytes).ok()?;
        let range = buf.address()..buf.address() + buf.capacity() as u64;
        self.books().allocated(cx.id(), range);
        Some(buf)
    }

    fn grant(&mut self, cx: &mut Context<'_>) {
        let (Some(to), Some(buf)) = (self.pick(|it| &it.others), self.buffer(cx)) else {
            return;
        };
        let bytes = buf.capacity();
        if let Ok(id) = cx.grant(&buf, 0..bytes, Rights::ALL, to, Lease::None) {
            let range = buf.address()..buf.address() + bytes as u64;
            self.books().granted(cx.id(), id, range);
            self.grants.insert(id, buf);
        }
    }

    fn operate(&mut self, cx: &mut Context<'_>) {
        let Some(import) = self.pick(|it| &it.imports) else {
            return;
        };
        let Some(buf) = self.buffer(cx) else { return };
        let most = import.len.min(buf.capacity() as u64);
        let len = self.dice.below(most + 1) as usize;
        let (half, token) = (len / 2, self.next_token());
        let local = [Local::new(&buf, 0..half), Local::new(&buf, half..len)];
        let done = match self.dice.below(5) {
            0 | 1 => cx.write(&import, 0, &local, token),
            2 => cx.read(&import, 0, &local, token),
            3 => cx.write_with_immediate(&import, 0, &local, 7, token),
            _ => cx.fetch_add(&import, 0, 1, token),
        };
        if done.is_ok() {
            self.books().submitted(cx.id(), token);
        }
        // The buffer is dropped: the operation keeps it.
    }

    fn send(&mut self, cx: &mut Context<'_>) {
        let Some(to) = self.pick(|it| &it.others) else {
            return;
        };
        let token = self.next_token();
        let sent = if self.dice.below(2) == 0 {
            cx.send(to, b"short", token)
        } else {
            let Some(buf) = self.buffer(cx) else { return };
            cx.send_from(to, &[Local::prefix(&buf, 60)], token)
        };
        if sent.is_ok() {
            self.books().submitted(cx.id(), token);
        }
    }

    fn next_token(&mut self) -> u64 {
        self.token += 1;
        self.token
    }

    fn zapped(&mut self, cx: &mut Context<'_>, id: GrantId) {
        self.books().zapped(cx.id(), id);
        if let Some(buf) = self.grants.remove(&id) {
            buf.dma().fill(PATTERN);
            self.watched.push(buf);
        }
    }

    /// R1, byte by byte.
    fn scan(&mut self, cx: &mut Context<'_>) {
        for buf in self.watched.drain(..) {
            if let Some(at) = buf.dma().first_not(PATTERN) {
                let what = format!("{}: byte {at} landed after Zapped", cx.id());
                self.books.lock().unwrap().fail(what);
            }
        }
    }
}

impl Service for Worker {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        match self.dice.below(24) {
            0 => {
                let name = NAMES[self.dice.below(NAMES.len() as u64) as usize];
                let _ = cx.lookup(PeerId(0), name, 0);
            }
            1..=3 => self.grant(cx),
            4 => {
                let at = self.dice.below(self.grants.len().max(1) as u64) as usize;
                if let Some(id) = self.grants.keys().nth(at) {
                    // The end of a lost session may have come first.
                    let _ = cx.revoke(*id);
                }
            }
            5..=10 => self.operate(cx),
            11..=14 => self.send(cx),
            15 => self.scan(cx),
            16 => self.kept.clear(),
            17 if cx.flush(self.flushes).is_ok() => self.flushes += 1,
            18 if self.dice.below(200) == 0 => cx.close(),
            _ => return Work::Idle,
        }
        Work::Busy
    }

    fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
        match event {
            Event::Resolved {
                context: Some(remote),
                ..
            } if !self.others.contains(&remote) => self.others.push(remote),
            Event::Granted(import) => self.imports.push(import),
            Event::Revoked(id) => self.imports.retain(|import| import.id != id),
            Event::Zapped(id) => self.zapped(cx, id),
            Event::GrantQuarantined(id) => {
                self.books().grant_quarantined(cx.id(), id);
                // Not watched: a late access is what it is quarantined for.
                self.grants.remove(&id);
            }
            Event::Completed(done) => self.books().completed(cx.id(), done),
            Event::Message(message) => self.kept.push(message),
            Event::ContextGone { context, .. } => self.others.retain(|other| *other != context),
            Event::PeerDown(_) => self.others.clear(),
            _ => {}
        }
    }
}
