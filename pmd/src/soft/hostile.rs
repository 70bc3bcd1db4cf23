//! A peer that writes nonsense into the segment: the other side goes to error at most, and reaches nothing that no key opens.

use std::sync::Arc as StdArc;

use keyfence_mempool::arena::{Arena, ArenaConfig, PageSize, Policy};
use keyfence_mempool::sync::{Arc, AtomicBool};
use proptest::prelude::*;

use super::arenas::{ArenaBooks, PathArenas};
use super::completions::Completions;
use super::endpoint::{Endpoint, QpFlags};
use super::keys::{Extent, Identity, KeyTable, Phase};
use super::link::{End, Link, Side};
use super::memory::Memory;
use super::stream::SLICE_BYTES;
use super::wire::{Answer, Response};
use crate::completion::{Completion, WcStatus};
use crate::device::QpConfig;
use crate::ids::{LcoreId, Lkey, PdId, QpId, Rkey, WorkId};
use crate::work::{ReceiveRequest, Remote, Rights, Sge, SgeList, WorkOp, WorkRequest};

const PD: PdId = PdId(1);
const QP: QpId = QpId(9);
/// The victim's receives and sinks may be written, the rest of its arena may not.
const OWN: usize = 1 << 18;
const ARENA_BYTES: usize = 1 << 20;
const DEPTH: u32 = 16;
const LKEY: Lkey = Lkey(1 << 8);

/// An endpoint with requests of every kind under way, and the peer's end of its link in the attacker's hands.
struct Victim {
    endpoint: Endpoint,
    keys: KeyTable,
    arenas: PathArenas,
    arena: Arc<Arena>,
    attacker: End,
}

impl Victim {
    fn new() -> Self {
        let mut victim = Self::unasked();
        victim.post();
        victim
    }

    /// With nothing posted.
    fn unasked() -> Self {
        let config = ArenaConfig {
            page_size: PageSize::Base4KiB,
            transparent: false,
            hugepages: Policy::Off,
            lock: Policy::Off,
            ..ArenaConfig::new(ARENA_BYTES)
        };
        let arena = Arc::new(Arena::map(&config).unwrap());
        let mut books = ArenaBooks::new();
        let arenas = books.open_path();
        let name = books.add_region(&arena).unwrap();
        let keys = KeyTable::new(4);
        let identity = Identity {
            phase: Phase::Region,
            rights: Rights::NONE,
            bindable: true,
            tag: 0,
            generation: 0,
            scope: PD.0,
        };
        let extent = Extent {
            base: arena.address(),
            bytes: OWN as u64,
            offset: 0,
            arena: name,
        };
        keys.open_region(1, identity, extent);
        let link = Link::map(8, SLICE_BYTES).unwrap();
        let mut victim = Self {
            endpoint: endpoint(),
            keys,
            arenas,
            arena,
            attacker: link.end(Side::Acceptor),
        };
        victim.endpoint.connect(Box::new(link.end(Side::Connector)));
        victim
    }

    /// One write of eight bytes.
    fn post_write(&mut self) -> usize {
        let remote = Remote {
            address: 0x1000,
            rkey: Rkey(0x777),
        };
        let op = WorkOp::Write {
            remote,
            immediate: None,
        };
        let list = SgeList::one(Sge::new(self.arena.address(), 8, LKEY));
        let mut memory = Memory::new(&self.keys, &mut self.arenas, SLICE_BYTES);
        self.endpoint
            .post(&mut memory, &[WorkRequest::new(WorkId(1), op, list)])
    }

    fn post(&mut self) {
        let remote = Remote {
            address: 0x1000,
            rkey: Rkey(0x777),
        };
        let list =
            |offset: u64, len| SgeList::one(Sge::new(self.arena.address() + offset, len, LKEY));
        let ops = [
            (
                WorkOp::Write {
                    remote,
                    immediate: None,
                },
                list(0, 8),
            ),
            (WorkOp::Read { remote }, list(0, 100_000)),
            (WorkOp::FetchAdd { remote, add: 1 }, list(8, 8)),
            (WorkOp::Read { remote }, list(64, 8)),
            (WorkOp::Send { immediate: None }, list(0, 50_000)),
        ];
        let work = ops.map(|(op, list)| WorkRequest::new(WorkId(1), op, list));
        let mut memory = Memory::new(&self.keys, &mut self.arenas, SLICE_BYTES);
        assert_eq!(self.endpoint.post(&mut memory, &work), 5);
        let receives = [16, 60_000, 200_000].map(|len| ReceiveRequest {
            id: WorkId(2),
            sge: Sge::new(self.arena.address(), len, LKEY),
        });
        assert_eq!(self.endpoint.post_receives(&receives), 3);
    }

    fn visit(&mut self) -> Vec<Completion> {
        let mut done = [Completion::EMPTY; 16];
        let mut completions = Completions::new(&mut done);
        let mut memory = Memory::new(&self.keys, &mut self.arenas, SLICE_BYTES);
        self.endpoint.visit(&mut memory, &mut completions);
        let count = completions.len();
        done[..count].to_vec()
    }

    fn rest_is_untouched(&self) -> bool {
        let rest = self.arena.dma(OWN, ARENA_BYTES - OWN).unwrap();
        rest.first_not(0).is_none()
    }
}

fn endpoint() -> Endpoint {
    let config = QpConfig {
        pd: PD,
        lcore: LcoreId(0),
        send_depth: DEPTH,
        receive_depth: 16,
        max_sge: 2,
        max_inline_bytes: 0,
    };
    let flags = QpFlags {
        failed: AtomicBool::new(false),
        released: AtomicBool::new(false),
    };
    Endpoint::new(QP, &config, 1 << 20, StdArc::new(flags))
}

/// What the attacker does next. Headers are near the legal ones, so that the deeper checks are reached.
#[derive(Clone, Debug)]
enum Attack {
    Request(u64, [u64; 7]),
    Answer(u64, [u64; 7]),
    Counter(u64),
    AnswerCounter(u64),
    Down,
    Nothing,
}

fn header() -> impl Strategy<Value = u64> {
    let len = prop_oneof![
        Just(0u64),
        Just(8),
        Just(40),
        Just(41),
        Just(34_464),
        Just(65_536),
        Just(100_000),
        any::<u32>().prop_map(u64::from),
    ];
    let legal = (0u64..8, 0u64..4, len).prop_map(|(op, flags, len)| op | flags << 8 | len << 16);
    prop_oneof![4 => legal, 1 => 0u64..1 << 48]
}

fn body() -> impl Strategy<Value = [u64; 7]> {
    let first = prop_oneof![0u64..6, any::<u64>()];
    let second = prop_oneof![Just(1u64 << 8), 0u64..6, any::<u64>()];
    (first, second, any::<[u64; 5]>()).prop_map(|(a, b, [c, d, e, f, g])| [a, b, c, d, e, f, g])
}

fn attack() -> impl Strategy<Value = Attack> {
    prop_oneof![
        4 => (header(), body()).prop_map(|(header, body)| Attack::Request(header, body)),
        4 => (header(), body()).prop_map(|(header, body)| Attack::Answer(header, body)),
        2 => prop_oneof![0u64..10, any::<u64>()].prop_map(Attack::Counter),
        1 => prop_oneof![0u64..10, any::<u64>()].prop_map(Attack::AnswerCounter),
        1 => Just(Attack::Down),
        2 => Just(Attack::Nothing),
    ]
}

fn play(victim: &mut Victim, attack: Attack) {
    let attacker = &mut victim.attacker;
    match attack {
        Attack::Request(header, body) if attacker.requests_out.has_room(0) => {
            attacker.requests_out.write((header, body), 0);
        }
        Attack::Answer(header, body) if attacker.answers_out.has_room(0) => {
            attacker.answers_out.write((header, body), 0);
        }
        Attack::Counter(count) => attacker.requests_in.lie(count),
        Attack::AnswerCounter(count) => attacker.answers_in.lie(count),
        Attack::Down => attacker.mark_error(),
        Attack::Request(..) | Attack::Answer(..) | Attack::Nothing => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn r12_nonsense_in_the_segment_moves_this_side_to_error_at_most(
        attacks in proptest::collection::vec(attack(), 1..24),
    ) {
        let mut victim = Victim::new();
        let mut done = Vec::new();
        for attack in attacks {
            play(&mut victim, attack);
            done.extend(victim.visit());
        }
        prop_assert!(victim.rest_is_untouched());
        // Whatever happened, the owner can end it and gets each request back exactly once.
        victim.endpoint.abandon();
        done.extend(victim.visit());
        prop_assert_eq!(done.iter().filter(|done| done.id == WorkId(1)).count(), 5);
        prop_assert_eq!(done.iter().filter(|done| done.id == WorkId(2)).count(), 3);
        let first_bad = done.iter().filter(|done| done.id == WorkId(1)).position(|done| !done.is_success());
        let after = done.iter().filter(|done| done.id == WorkId(1)).skip(first_bad.unwrap_or(5) + 1);
        prop_assert!(after.map(|done| done.status).all(|status| status == WcStatus::Flushed));
    }
}

#[test]
fn a_counter_that_runs_ahead_or_back_is_a_protocol_error() {
    for lies in [[u64::MAX, 0], [100, 0], [2, 1]] {
        let mut victim = Victim::new();
        let mut done = Vec::new();
        for lie in lies {
            victim.attacker.requests_in.lie(lie);
            done.extend(victim.visit());
        }
        let failed = done.iter().filter(|done| !done.is_success());
        assert!(failed.count() > 0, "{lies:?}");
        assert!(
            done.iter()
                .all(|done| matches!(done.status, WcStatus::Success | WcStatus::Flushed))
        );
    }
}

/// However many writes were acknowledged: the search for the request of an answer looks at the queue, not at history. `asked` asserts it.
#[test]
fn r12_an_answer_that_nobody_asked_for_is_refused_at_once() {
    for response in [
        Response {
            request: 0,
            answer: Answer::Data { len: 8 },
            payload: [0; 5],
        },
        Response {
            request: 0,
            answer: Answer::Former { value: 1 },
            payload: [0; 5],
        },
    ] {
        let mut victim = Victim::unasked();
        for _ in 0..5 * DEPTH {
            assert_eq!(victim.post_write(), 1);
            assert!(victim.attacker.requests_in.peek().is_some());
            victim.attacker.requests_in.finish(0, true);
            victim.attacker.requests_in.publish(true);
            let done = victim.visit();
            assert!(done.len() == 1 && done[0].is_success(), "{done:?}");
        }
        assert_eq!(victim.post_write(), 1);
        victim.attacker.answers_out.write(response.encode(), 0);
        let done = victim.visit();
        assert_eq!(done.len(), 1);
        assert_eq!(done[0].status, WcStatus::Flushed);
    }
}
