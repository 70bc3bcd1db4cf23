//! Bursts in which reads and atomics stand among writes, over several laps of the send queue: each answer meets the request it is for.

mod pair;

use keyfence_pmd::soft::SoftConfig;
use keyfence_pmd::*;
use pair::{POLL_LIMIT, Pair, QP, read, write};
use proptest::prelude::*;

const WORDS: usize = 4;
const TARGET: usize = 1 << 20;
const SINK: usize = 2 << 20;
const DEPTH: u32 = 8;

#[derive(Clone, Copy, Debug)]
enum Step {
    Write,
    Read,
    Add,
}

/// What a request does, to which word, and whether it is signaled.
fn step() -> impl Strategy<Value = (Step, usize, bool)> {
    let step = prop_oneof![4 => Just(Step::Write), 1 => Just(Step::Read), 1 => Just(Step::Add)];
    (step, 0..WORDS, any::<bool>())
}

/// The request of a step, and in `model` what it does. What it must bring back, if anything.
fn request(
    pair: &Pair,
    remote: Remote,
    number: usize,
    (step, word, signaled): (Step, usize, bool),
    model: &mut [u64; WORDS],
) -> (WorkRequest, Option<u64>) {
    let remote = Remote {
        address: remote.address + 8 * word as u64,
        ..remote
    };
    let (id, sink) = (number as u64, pair.a.list(SINK + 8 * number, 8));
    let (work, expected) = match step {
        Step::Write => {
            let value = number as u64 + 1;
            pair.a.fill(8 * number, &value.to_ne_bytes());
            model[word] = value;
            (write(id, remote, pair.a.list(8 * number, 8)), None)
        }
        Step::Read => (read(id, remote, sink), Some(model[word])),
        Step::Add => {
            let old = model[word];
            model[word] = old + 1000;
            let op = WorkOp::FetchAdd { remote, add: 1000 };
            (WorkRequest::new(WorkId(id), op, sink), Some(old))
        }
    };
    (work.signaled(signaled), expected)
}

fn play(bursts: &[Vec<(Step, usize, bool)>]) {
    let config = QpConfig {
        send_depth: DEPTH,
        ..QP
    };
    let mut pair = Pair::with(SoftConfig::TEST_MIN, config);
    let (_, remote) = pair.open(TARGET, 8 * WORDS as u64, Rights::ALL);
    let mut model = [0; WORDS];
    let (mut wanted, mut reported) = (Vec::new(), Vec::new());
    let mut number = 0;
    for burst in bursts {
        let mut work = Vec::new();
        // The last of a burst is signaled, or a queue full of silent ones would never be free.
        for (at, (step, word, signaled)) in burst.iter().enumerate() {
            let signaled = *signaled || at + 1 == burst.len();
            let step = (*step, *word, signaled);
            let (one, expected) = request(&pair, remote, number, step, &mut model);
            wanted.extend(expected.map(|value| (number, value)));
            reported.extend(signaled.then_some(WorkId(number as u64)));
            work.push(one);
            number += 1;
        }
        let mut rest = &work[..];
        for _ in 0..POLL_LIMIT {
            let taken = pair.a.path.post_burst(pair.a.qp, rest);
            rest = &rest[taken..];
            if rest.is_empty() {
                break;
            }
            pair.step();
        }
        assert_eq!(rest.len(), 0, "never taken");
    }
    for _ in 0..POLL_LIMIT {
        if pair.a.done.len() >= reported.len() {
            break;
        }
        pair.step();
    }
    let done: Vec<_> = pair
        .a
        .done
        .iter()
        .map(|done| (done.id, done.status))
        .collect();
    let good: Vec<_> = reported.iter().map(|id| (*id, WcStatus::Success)).collect();
    assert_eq!(done, good);
    for (number, value) in wanted {
        assert_eq!(pair.a.word(SINK + 8 * number), value, "request {number}");
    }
    for (word, value) in model.iter().enumerate() {
        assert_eq!(pair.b.word(TARGET + 8 * word), *value);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn answers_meet_their_requests_over_many_laps(
        bursts in proptest::collection::vec(proptest::collection::vec(step(), 1..=DEPTH as usize), 1..16),
    ) {
        play(&bursts);
    }
}
