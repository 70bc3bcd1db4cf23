//! The context on the other side: it grants, or answers messages.

use keyfence::{
    Buf, Context, Event, Import, Lease, MAX_COPIED_MESSAGE_BYTES, Rights, Service, Work,
};
use keyfence::{Local, ids::RemoteContext};
use keyfence_mempool::sync::Arc;

use super::driver::DRIVER;
use super::landing::{Landing, stamp};
use super::meter::Meter;
use super::{Job, Op};

/// The context that is measured against.
pub struct Target {
    job: Job,
    meter: Arc<Meter>,
    buf: Option<Buf>,
    landing: Option<Landing>,
    import: Option<Import>,
    written: u64,
    asked: bool,
    driver: Option<RemoteContext>,
}

impl Target {
    /// It looks the driver up by itself.
    pub fn new(job: Job, meter: Arc<Meter>) -> Self {
        Self {
            job,
            meter,
            buf: None,
            landing: None,
            import: None,
            written: 0,
            asked: false,
            driver: None,
        }
    }

    /// Opens the buffer to the driver, or says hello to it.
    fn meet(&mut self, cx: &mut Context<'_>, driver: RemoteContext) {
        self.driver = Some(driver);
        let bytes = self.job.size.max(1);
        let buf = match cx.alloc(bytes) {
            Ok(buf) => buf,
            Err(error) => return self.meter.fail(format!("the target's buffer: {error}")),
        };
        let rights = Rights::READ_WRITE;
        let done = match self.job.op {
            Op::Send => cx.send(driver, &[], 0).map_err(|error| error.to_string()),
            _ => cx
                .grant(&buf, 0..bytes, rights, driver, Lease::None)
                .map(drop)
                .map_err(|error| error.to_string()),
        };
        if self.job.is_ping_pong && self.job.op == Op::Write {
            self.landing = Some(Landing::new(buf, bytes));
            self.buf = cx.alloc(bytes).ok();
        } else {
            self.buf = Some(buf);
        }
        if let Err(why) = done {
            self.meter.fail(format!("the target: {why}"));
        }
    }

    /// What has landed goes back, if this is a ping-pong of writes.
    fn write_back(&mut self, cx: &mut Context<'_>) -> Work {
        let Some(landing) = &mut self.landing else {
            return Work::Wait;
        };
        let (Some(import), Some(source)) = (&self.import, &self.buf) else {
            return Work::Idle;
        };
        if !landing.has_landed() {
            return Work::Idle;
        }
        stamp(source, self.job.size, self.written);
        self.written += 1;
        let local = [Local::prefix(source, self.job.size)];
        if let Err(error) = cx.write(import, 0, &local, 0) {
            self.meter.fail(format!("writing back: {error}"));
        }
        Work::Busy
    }

    fn answer(&self, cx: &mut Context<'_>, to: RemoteContext) {
        let size = self.job.size;
        let done = match &self.buf {
            Some(buf) if size > MAX_COPIED_MESSAGE_BYTES => {
                cx.send_from(to, &[Local::prefix(buf, size)], 0)
            }
            _ => cx.send(to, &[0; MAX_COPIED_MESSAGE_BYTES][..size], 0),
        };
        if let Err(error) = done {
            self.meter.fail(format!("answering: {error}"));
        }
    }
}

impl Service for Target {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        if self.driver.is_some() {
            return self.write_back(cx);
        }
        let peer = cx.peers().next();
        if let (Some(peer), false) = (peer, self.asked) {
            self.asked = cx.lookup(peer, DRIVER, 0).is_ok();
        }
        Work::Idle
    }

    fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
        match event {
            Event::Resolved { context, .. } => {
                // The other side may not have opened its context yet.
                self.asked = false;
                if let (Some(driver), None) = (context, self.driver) {
                    self.meet(cx, driver);
                }
            }
            Event::Message(message) if self.job.is_ping_pong => {
                let from = message.from();
                drop(message);
                self.answer(cx, from);
            }
            Event::Granted(import) => self.import = Some(import),
            _ => {}
        }
    }
}
