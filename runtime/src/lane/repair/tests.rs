//! Two ends of a link on which queue pairs break at any point, in every order: each message is delivered once and in order, and both ends become whole.

use std::collections::{HashSet, VecDeque};

use super::machine::{Fault, Orders};
use super::*;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Frame {
    Message(u32),
    Begin { repair: u32, received: u32 },
    End { repair: u32 },
}

/// One queue pair's life at one end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Qp {
    broken: bool,
    drained: bool,
    destroyed: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct End {
    repair: Repair,
    /// The connection that carries the link.
    carrier: usize,
    qps: Vec<Qp>,
    sent: u32,
    received: u32,
}

/// Two ends; messages go from the first to the second.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct World {
    ends: [End; 2],
    /// Frames under way on each connection, to each end.
    wires: Vec<[VecDeque<Frame>; 2]>,
    breaks_left: u8,
    to_send: u32,
}

impl World {
    fn new(breaks: u8, messages: u32) -> Self {
        let mut world = Self {
            breaks_left: breaks,
            to_send: messages,
            ..Self::default()
        };
        world.connect();
        world
    }

    /// A new connection, at both ends.
    fn connect(&mut self) {
        self.wires.push(Default::default());
        for end in &mut self.ends {
            end.qps.push(Qp::default());
        }
    }

    fn tell(&mut self, at: usize, event: Event) {
        let orders = self.ends[at].repair.handle(event);
        for order in orders.into_iter().flat_map(Orders::iter) {
            self.obey(at, order);
        }
    }

    fn obey(&mut self, at: usize, order: Order) {
        let end = &mut self.ends[at];
        match order {
            Order::TakeOver { repair } => {
                let old = end.qps[end.carrier];
                assert!(old.drained, "what came is fixed before the link moves");
                end.carrier = repair as usize;
                let received = end.received;
                self.say(at, Frame::Begin { repair, received });
                self.say(at, Frame::End { repair });
                self.tell(at, Event::Said);
            }
            Order::Confirm => {}
            Order::Judge { received } => {
                let alive = |qp: &&Qp| qp.broken && !qp.destroyed;
                assert_eq!(end.qps.iter().filter(alive).count(), 0, "R3");
                assert!(received <= end.sent, "what was never sent did not come");
                end.sent = received;
                self.tell(at, Event::Judged);
            }
            Order::Apply => self.tell(at, Event::Applied),
            Order::Resume => assert!(self.ends[at].repair.is_whole()),
        }
    }

    /// Lost if the queue pair of this end is broken.
    fn say(&mut self, at: usize, frame: Frame) {
        let carrier = self.ends[at].carrier;
        if !self.ends[at].qps[carrier].broken {
            self.wires[carrier][1 - at].push_back(frame);
        }
    }

    fn break_qp(&mut self, at: usize, qp: usize) {
        self.ends[at].qps[qp].broken = true;
        if self.ends[at].carrier == qp {
            self.tell(at, Event::Broke);
        } else {
            if !self.ends[at].repair.is_whole() {
                let repair = qp as u32;
                self.tell(at, Event::Withdrawn { repair });
            }
            // Nothing was ever on it.
            self.ends[at].qps[qp] = Qp {
                broken: true,
                drained: true,
                destroyed: true,
            };
        }
    }

    fn deliver(&mut self, at: usize, qp: usize) {
        let frame = self.wires[qp][at].pop_front().unwrap();
        match frame {
            Frame::Message(number) => {
                let end = &mut self.ends[at];
                assert_eq!(number, end.received + 1, "once, and in order");
                end.received = number;
            }
            Frame::Begin { repair, received } => self.tell(at, Event::Begin { repair, received }),
            Frame::End { repair } => self.tell(at, Event::End { repair }),
        }
    }

    /// All that can happen next.
    fn next(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut push = |step: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            step(&mut next);
            all.push(next);
        };
        if self.ends[0].repair.is_whole() && self.ends[0].sent < self.to_send {
            push(&|world| {
                world.ends[0].sent += 1;
                let number = world.ends[0].sent;
                world.say(0, Frame::Message(number));
            });
        }
        for at in 0..2 {
            let end = &self.ends[at];
            for qp in 0..self.wires.len() {
                // On one that does not carry the link yet nothing is taken.
                if qp == end.carrier && !end.qps[qp].drained && !self.wires[qp][at].is_empty() {
                    push(&|world| world.deliver(at, qp));
                }
                let Qp {
                    broken,
                    drained,
                    destroyed,
                } = end.qps[qp];
                // One that broke at the other end breaks here in the end.
                let other_broke = self.ends[1 - at].qps[qp].broken;
                if !broken && (other_broke || self.breaks_left > 0) {
                    push(&|world| {
                        world.breaks_left -= u8::from(!other_broke);
                        world.break_qp(at, qp);
                    });
                }
                if broken && !drained {
                    push(&|world| {
                        world.ends[at].qps[qp].drained = true;
                        world.wires[qp][at].clear();
                        if world.ends[at].carrier == qp {
                            world.tell(at, Event::Drained);
                        }
                    });
                }
                if drained && !destroyed {
                    push(&|world| {
                        world.ends[at].qps[qp].destroyed = true;
                        world.tell(at, Event::Destroyed);
                    });
                }
            }
        }
        if self.may_connect() {
            push(&Self::reconnect);
        }
        all
    }

    /// The first end asks when its own carrier broke and no other connection stands for it.
    fn may_connect(&self) -> bool {
        let newest = self.wires.len() - 1;
        self.ends[0].repair.is_adrift() && self.ends.iter().any(|end| end.qps[newest].broken)
    }

    /// A new connection is admitted at both ends. The second may not have seen yet that the last one broke.
    fn reconnect(&mut self) {
        let newest = self.wires.len() - 1;
        self.connect();
        let carrier = self.ends[1].carrier;
        for qp in carrier..=newest {
            if !self.ends[1].qps[qp].broken {
                self.break_qp(1, qp);
            }
        }
        let repair = newest as u32 + 1;
        for at in 0..2 {
            self.tell(at, Event::Admitted { repair });
        }
    }

    fn is_at_rest(&self) -> bool {
        let whole = self.ends.iter().all(|end| end.repair.is_whole());
        whole && self.ends[1].received == self.to_send && self.ends[0].sent == self.to_send
    }
}

#[test]
fn r5_each_message_is_delivered_once_and_in_order_however_queue_pairs_break() {
    let mut seen = HashSet::new();
    let mut open = vec![World::new(3, 2)];
    let mut at_rest = 0;
    while let Some(world) = open.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        let next = world.next();
        if next.is_empty() || next.iter().all(|next| next.breaks_left < world.breaks_left) {
            assert!(world.is_at_rest(), "stuck: {world:#?}");
            at_rest += 1;
        }
        open.extend(next);
    }
    assert!(
        seen.len() > 10_000 && at_rest > 100,
        "{} {at_rest}",
        seen.len()
    );
}

fn cut(context: u16, work: CutWork) -> Cut {
    Cut {
        op: 0,
        context,
        bytes: 1,
        work,
        receiver: None,
    }
}

fn verdicts(cuts: &[Cut], received: u32) -> (Vec<Verdict>, bool) {
    let mut seen = [Seen::default(); 4];
    let mut all = Vec::new();
    judge(cuts, received, &mut seen, |_, verdict| all.push(verdict));
    all.reverse();
    (all, seen[0].stalled)
}

const WRITE: CutWork = CutWork::Write { idempotent: false };
const AGAIN: CutWork = CutWork::Write { idempotent: true };

fn message(number: u32) -> CutWork {
    CutWork::Message { number }
}

#[test]
fn what_stands_before_a_message_that_came_was_executed() {
    let cuts = [
        cut(0, WRITE),
        cut(1, CutWork::Atomic),
        cut(1, CutWork::Read),
        cut(2, message(7)),
        cut(0, message(8)),
    ];
    let (all, stalled) = verdicts(&cuts, 7);
    use Verdict::*;
    assert_eq!(all, [Executed, Indeterminate, Repeat, Executed, Repeat]);
    assert!(!stalled);
}

#[test]
fn behind_a_write_of_unknown_end_nothing_of_its_context_is_said() {
    let cuts = [
        cut(0, message(u32::MAX)),
        cut(0, WRITE),
        cut(1, AGAIN),
        cut(0, message(0)),
        cut(1, message(1)),
        cut(0, CutWork::Landed { number: 2 }),
    ];
    let (all, stalled) = verdicts(&cuts, u32::MAX);
    use Verdict::*;
    let wanted = [
        Executed,
        Indeterminate,
        Repeat,
        NotSent,
        Repeat,
        Indeterminate,
    ];
    assert_eq!(all, wanted);
    assert!(stalled);
}

#[test]
fn a_read_with_a_later_write_is_not_read_again() {
    let cuts = [
        cut(0, CutWork::Read),
        cut(0, AGAIN),
        cut(0, CutWork::Read),
        cut(1, CutWork::Read),
        cut(0, message(5)),
    ];
    use Verdict::*;
    let (all, _) = verdicts(&cuts, 4);
    assert_eq!(all, [Indeterminate, Repeat, Repeat, Repeat, Repeat]);
    let (all, _) = verdicts(&cuts, 5);
    assert_eq!(all, [Indeterminate, Executed, Repeat, Repeat, Executed]);
}

#[test]
fn words_of_another_repair_change_nothing() {
    let mut repair = Repair::default();
    let begin = |repair| Event::Begin {
        repair,
        received: 0,
    };
    assert_eq!(repair.handle(begin(0)), Err(Fault::Stale), "it is whole");
    repair.handle(Event::Broke).unwrap();
    assert_eq!(repair.handle(begin(0)), Err(Fault::Stale), "not begun here");
    repair.handle(Event::Admitted { repair: 3 }).unwrap();
    repair.handle(Event::Drained).unwrap();
    let before = repair;
    for event in [begin(2), begin(4), Event::End { repair: 3 }] {
        assert_eq!(repair.handle(event), Err(Fault::Stale), "{event:?}");
        assert_eq!(repair, before);
    }
    repair.handle(begin(3)).unwrap();
    assert_eq!(repair.handle(begin(3)), Err(Fault::Stale), "said twice");
}
