//! The context that measures: it submits, and takes the time.

use keyfence::ids::RemoteContext;
use keyfence::latency::LatencyHistogram;
use keyfence::{
    Buf, Context, Event, Import, Lease, Local, MAX_COPIED_MESSAGE_BYTES, Rights, Service, Status,
    SubmitError, Work,
};
use keyfence_mempool::sync::Arc;

use super::landing::{Landing, stamp};
use super::meter::{Meter, Round, STOP, Turn, is_probe};
use super::{Job, Op};

/// The name by which the target finds this context.
pub const DRIVER: &str = "driver";

/// The context that measures.
pub struct Driver {
    job: Job,
    meter: Arc<Meter>,
    bufs: Vec<Buf>,
    import: Option<Import>,
    /// Where writes come back, in a ping-pong of them.
    landing: Option<Landing>,
    /// How many writes went off in all.
    written: u64,
    target: Option<RemoteContext>,
    turn: Turn,
    round: Counts,
    /// When the message went off that is under way, there and back.
    pinged_ns: u64,
    /// Latencies of the round: a store each; the histogram is filled when nothing is being measured.
    samples: Vec<u64>,
}

/// Where a round is.
#[derive(Debug, Default)]
struct Counts {
    wanted: u64,
    submitted: u64,
    ended: u64,
    began_ns: u64,
    /// The intended start of the next one, in an open loop.
    next_ns: f64,
}

impl Driver {
    /// It has what it needs when the target's grant, or message, has come.
    pub fn new(job: Job, meter: Arc<Meter>) -> Self {
        let most = job.round_ops.max(job.warmup) as usize;
        let round = Counts {
            wanted: job.warmup,
            ..Counts::default()
        };
        Self {
            job,
            meter,
            bufs: Vec::new(),
            import: None,
            landing: None,
            written: 0,
            target: None,
            turn: 0,
            round,
            pinged_ns: 0,
            samples: Vec::with_capacity(most),
        }
    }

    fn is_ready(&self) -> bool {
        match self.job.op {
            Op::Send => self.target.is_some(),
            Op::Write | Op::Read => self.import.is_some(),
        }
    }

    /// Follows into the next round.
    fn enter(&mut self, turn: Turn, now_ns: u64) {
        self.turn = turn;
        self.samples.clear();
        self.round = Counts {
            wanted: self.job.round_ops,
            began_ns: now_ns,
            next_ns: now_ns as f64,
            ..Counts::default()
        };
    }

    fn submit_due(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while self.round.submitted < self.round.wanted
            && self.round.submitted - self.round.ended < u64::from(self.job.depth)
        {
            let mut start_ns = self.meter.clock.now_ns();
            if let Some(interval_ns) = self.job.interval_ns {
                if self.round.next_ns > start_ns as f64 {
                    break;
                }
                start_ns = self.round.next_ns as u64;
                if !self.submit(cx, start_ns) {
                    break;
                }
                self.round.next_ns += interval_ns;
            } else if !self.submit(cx, start_ns) {
                break;
            }
            any = true;
        }
        any
    }

    /// Submits one operation whose token is its start.
    fn submit(&mut self, cx: &mut Context<'_>, start_ns: u64) -> bool {
        let size = self.job.size;
        let buf = &self.bufs[(self.round.submitted % self.bufs.len() as u64) as usize];
        let local = [Local::prefix(buf, size)];
        if self.landing.is_some() {
            stamp(buf, size, self.written);
        }
        let done = match (self.job.op, &self.import, self.target) {
            (Op::Write, Some(import), _) => cx.write(import, 0, &local, start_ns),
            (Op::Read, Some(import), _) => cx.read(import, 0, &local, start_ns),
            (_, _, Some(to)) if size <= MAX_COPIED_MESSAGE_BYTES => {
                cx.send(to, &[0; MAX_COPIED_MESSAGE_BYTES][..size], start_ns)
            }
            (_, _, Some(to)) => cx.send_from(to, &local, start_ns),
            _ => unreachable!("nothing is submitted before the driver is ready"),
        };
        match done {
            Ok(()) => {
                self.round.submitted += 1;
                self.written += 1;
                self.pinged_ns = start_ns;
                true
            }
            // Full queues are the measurement's own doing.
            Err(SubmitError::Limit(_) | SubmitError::NoCredit { .. }) => false,
            Err(error) => {
                self.meter.fail(format!("submitting failed: {error}"));
                false
            }
        }
    }

    /// What went off last is back.
    fn came_back(&mut self) {
        let both_ways_ns = self.meter.clock.now_ns().saturating_sub(self.pinged_ns);
        self.ended(both_ways_ns / 2);
    }

    /// The target's memory is open to writes; in a ping-pong of them, ours is opened to its.
    fn granted(&mut self, cx: &mut Context<'_>, import: Import) {
        if self.job.is_ping_pong {
            let bytes = self.job.size;
            let landing = match cx.alloc(bytes) {
                Ok(buf) => Landing::new(buf, bytes),
                Err(error) => return self.meter.fail(format!("the driver's landing: {error}")),
            };
            let rights = Rights::READ_WRITE;
            let done = cx.grant(landing.buf(), 0..bytes, rights, import.owner, Lease::None);
            if let Err(error) = done {
                self.meter.fail(format!("the driver's grant: {error}"));
            }
            self.landing = Some(landing);
        }
        self.import = Some(import);
    }

    fn ended(&mut self, latency_ns: u64) {
        self.samples.push(latency_ns);
        self.round.ended += 1;
        if self.round.ended == self.round.wanted {
            self.end_round();
        }
    }

    fn end_round(&mut self) {
        let now_ns = self.meter.clock.now_ns();
        if self.turn > 0 {
            let mut latency = LatencyHistogram::new();
            self.samples.iter().for_each(|ns| latency.record(*ns));
            self.meter.add_round(Round {
                latency,
                ops: self.round.ended,
                elapsed_ns: now_ns - self.round.began_ns,
                began_ns: self.round.began_ns,
            });
        }
        self.meter.end(self.turn);
    }
}

impl Service for Driver {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        while self.bufs.len() < self.job.depth as usize {
            match cx.alloc(self.job.size.max(1)) {
                Ok(buf) => self.bufs.push(buf),
                Err(error) => {
                    self.meter.fail(format!("the driver's buffers: {error}"));
                    return Work::Wait;
                }
            }
        }
        let turn = self.meter.turn();
        if turn == STOP || is_probe(turn) || !self.is_ready() {
            return Work::Idle;
        }
        if turn != self.turn {
            self.enter(turn, self.meter.clock.now_ns());
        }
        if self.round.wanted == 0 {
            // No warm-up was asked for.
            self.meter.end(turn);
            return Work::Idle;
        }
        let has_landed = self.landing.as_mut().is_some_and(Landing::has_landed);
        if has_landed {
            self.came_back();
            // The round may have ended.
            return Work::Busy;
        }
        if self.submit_due(cx) {
            Work::Busy
        } else {
            Work::Idle
        }
    }

    fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
        match event {
            Event::Completed(done) if done.status != Status::Ok => {
                let why = format!("a {:?} ended as {:?}", done.kind, done.status);
                self.meter.fail(why);
            }
            Event::Completed(_) if self.job.is_ping_pong => {}
            Event::Completed(done) => {
                self.ended(self.meter.clock.now_ns().saturating_sub(done.token));
            }
            Event::Message(message) => {
                if self.target.is_none() {
                    self.target = Some(message.from());
                } else if self.job.is_ping_pong {
                    self.came_back();
                }
            }
            Event::Granted(import) => self.granted(cx, import),
            Event::PeerDown(_) => self.meter.fail("the session with the peer ended".into()),
            _ => {}
        }
    }
}
