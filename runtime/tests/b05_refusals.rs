//! B05, B06, R9: what is refused uses nothing up. Ten times the quota of calls that fail, at each point where one can, and then a full quota of good ones
//! is admitted at once; by a context that has worked before, and by one that has not.

mod pair;

use keyfence::ids::{ContextId, GrantId, RemoteContext, SessionId};
use keyfence::limits::{Limit, LimitError};
use keyfence::pmd::Caps;
use keyfence::pmd::soft::{Fabric, SoftConfig, SoftDevice};
use keyfence::{
    Buf, Context, Event, Import, Lease, Local, MAX_COPIED_MESSAGE_BYTES, Rights, Status,
    SubmitError,
};
use keyfence_mempool::sync::Arc;
use pair::judged::fast_limits;
use pair::scene::{completions, lookup};
use pair::switched::Switched;
use pair::{Pair, Puppet, Slot, builder};

const QUOTA: u64 = 16;
const BYTES_QUOTA: u64 = 64 << 10;

/// What a context can misuse.
struct Props {
    /// 128 KiB, to read and to write.
    good: Import,
    /// To read alone.
    read_only: Import,
    /// Taken back.
    revoked: Import,
    /// Another context's.
    foreign: Import,
    foreign_buf: Buf,
    /// Lives, and takes messages.
    owner: RemoteContext,
    /// Has as many messages as it takes.
    deaf: RemoteContext,
    gone: RemoteContext,
    own: Buf,
}

type Try = fn(&Props, &mut Context<'_>) -> Result<(), SubmitError>;

/// What is tried, how, and with which errors.
type Refusal = (&'static str, Try, fn(&SubmitError) -> bool);

fn own(props: &Props, bytes: usize) -> [Local<'_>; 1] {
    [Local::prefix(&props.own, bytes)]
}

fn nobody(props: &Props) -> RemoteContext {
    let id = ContextId {
        generation: 999_999,
        ..props.owner.id
    };
    RemoteContext { id, ..props.owner }
}

fn of_no_session(props: &Props) -> RemoteContext {
    RemoteContext {
        session: SessionId(999),
        ..props.owner
    }
}

/// Each point of refusal that has no other condition than its arguments.
const TRIES: &[Refusal] = &[
    (
        "a revoked import",
        |it, cx| cx.write(&it.revoked, 0, &own(it, 64), 1),
        |why| matches!(why, SubmitError::Revoked | SubmitError::NoSuchImport),
    ),
    (
        "another's import",
        |it, cx| cx.read(&it.foreign, 0, &own(it, 64), 1),
        |why| *why == SubmitError::NoSuchImport,
    ),
    (
        "a write to what may be read",
        |it, cx| cx.write(&it.read_only, 0, &own(it, 64), 1),
        |why| matches!(why, SubmitError::NotAllowed(_)),
    ),
    (
        "an atomic on what may be read",
        |it, cx| cx.fetch_add(&it.read_only, 0, 1, 1),
        |why| matches!(why, SubmitError::NotAllowed(_)),
    ),
    (
        "past the import's end",
        |it, cx| cx.write(&it.good, (128 << 10) - 63, &own(it, 64), 1),
        |why| matches!(why, SubmitError::OutsideImport { .. }),
    ),
    (
        "past all addresses",
        |it, cx| cx.read(&it.good, u64::MAX, &own(it, 64), 1),
        |why| matches!(why, SubmitError::OutsideImport { .. }),
    ),
    (
        "past the buffer's end",
        |it, cx| cx.write(&it.good, 0, &own(it, it.own.capacity() + 1), 1),
        |why| matches!(why, SubmitError::OutsideBuffer { .. }),
    ),
    (
        "three ranges",
        |it, cx| {
            let ranges = [0..8, 8..16, 16..24].map(|range| Local::new(&it.own, range));
            cx.write(&it.good, 0, &ranges, 1)
        },
        |why| matches!(why, SubmitError::TooManyRanges { .. }),
    ),
    (
        "another's buffer",
        |it, cx| cx.write(&it.good, 0, &[Local::prefix(&it.foreign_buf, 64)], 1),
        |why| *why == SubmitError::ForeignBuffer,
    ),
    (
        "another's buffer behind one's own",
        |it, cx| {
            let ranges = [
                Local::prefix(&it.own, 64),
                Local::prefix(&it.foreign_buf, 64),
            ];
            cx.send_from(it.owner, &ranges, 1)
        },
        |why| *why == SubmitError::ForeignBuffer,
    ),
    (
        "an odd address",
        |it, cx| cx.compare_swap(&it.good, 1, 0, 0, 1),
        |why| matches!(why, SubmitError::Misaligned { .. }),
    ),
    (
        "more bytes than the quota",
        |it, cx| cx.write(&it.good, 0, &own(it, BYTES_QUOTA as usize + 1), 1),
        |why| matches!(why, SubmitError::TooLarge { .. }),
    ),
    (
        "a long message that is copied",
        |it, cx| cx.send(it.owner, &[0; MAX_COPIED_MESSAGE_BYTES + 1], 1),
        |why| matches!(why, SubmitError::TooLong { .. }),
    ),
    (
        "a long message from a buffer",
        |it, cx| cx.send_from(it.owner, &own(it, 4096), 1),
        |why| matches!(why, SubmitError::TooLong { .. }),
    ),
    (
        "a message to one that is gone",
        |it, cx| cx.send(it.gone, b"?", 1),
        |why| *why == SubmitError::ContextGone,
    ),
    (
        "a message to one that never was",
        |it, cx| cx.send(nobody(it), b"?", 1),
        |why| *why == SubmitError::UnknownContext,
    ),
    (
        "a message to another session",
        |it, cx| cx.send(of_no_session(it), b"?", 1),
        |why| *why == SubmitError::NoSession,
    ),
    (
        "a message to a deaf one",
        |it, cx| cx.send(it.deaf, b"?", 1),
        |why| matches!(why, SubmitError::NoCredit { .. }),
    ),
];

type SoftPair = Pair<Switched<SoftDevice>>;

/// The left's device says something else of itself.
fn two(change: fn(&mut Caps)) -> SoftPair {
    let fabric = Fabric::new();
    let device = || Switched::new(fabric.device(SoftConfig::default()).unwrap()).0;
    let side = |name, peer| {
        let mut limits = fast_limits();
        // One, so that all have the same credits of a receiver.
        limits.lanes = 1;
        limits.context.ops_in_flight = QUOTA as u32;
        limits.context.bytes_in_flight = BYTES_QUOTA;
        limits.ops_in_flight = QUOTA as u32;
        limits.bytes_in_flight = BYTES_QUOTA;
        builder(name, peer, 1).limits(limits)
    };
    Pair::on(
        side("left", "right"),
        device().saying(change),
        side("right", "left"),
        device(),
    )
}

/// Opens 128 KiB of the owner's to a holder.
fn granted(
    pair: &mut SoftPair,
    owner: &Puppet,
    (holder, to): (&Puppet, RemoteContext),
    rights: Rights,
) -> (GrantId, Import) {
    let made = Slot::new();
    let to_made = made.clone();
    owner.act(move |cx| {
        let buf = cx.alloc(128 << 10).unwrap();
        let id = cx.grant(&buf, 0..128 << 10, rights, to, Lease::None);
        to_made.set(id.unwrap());
    });
    let mut import = None;
    pair.until(|_| {
        for event in holder.events() {
            if let Event::Granted(granted) = event {
                import = Some(granted);
            }
        }
        import.is_some()
    });
    (made.take().unwrap(), import.unwrap())
}

/// The stage on which contexts of the left try.
struct Stage {
    pair: SoftPair,
    owner: Puppet,
    stranger: Puppet,
    foreign: Import,
    /// Keeps the messages that it was sent.
    deaf: Puppet,
    rounds: u64,
}

impl Stage {
    fn new(change: fn(&mut Caps)) -> Self {
        let mut pair = two(change);
        let (owner, deaf) = (pair.right.puppet(0, "owner"), pair.right.puppet(0, "deaf"));
        let stranger = pair.left.puppet(0, "stranger");
        pair.steps(10);
        let to_deaf = lookup(&mut pair, &stranger, "deaf");
        stranger.act(move |cx| while cx.send(to_deaf, b"kept", 0).is_ok() {});
        pair.steps(200);
        let to_stranger = lookup(&mut pair, &owner, "stranger");
        let (_, foreign) = granted(&mut pair, &owner, (&stranger, to_stranger), Rights::ALL);
        Self {
            pair,
            owner,
            stranger,
            foreign,
            deaf,
            rounds: 0,
        }
    }

    /// A context that has submitted nothing yet, and what it can misuse.
    fn newcomer(&mut self) -> (Puppet, ContextId, Props) {
        self.rounds += 1;
        let name: &'static str = ["one", "another"][self.rounds as usize % 2];
        let puppet = self.pair.left.puppet(0, name);
        let gone = self.pair.right.puppet(0, "gone");
        self.pair.steps(5);
        let to = lookup(&mut self.pair, &self.owner.clone(), name);
        let mut import = |rights| granted(&mut self.pair, &self.owner, (&puppet, to), rights);
        let (_, good) = import(Rights::ALL);
        let (_, read_only) = import(Rights::READ);
        let (ending, revoked) = import(Rights::ALL);
        self.owner.act(move |cx| {
            cx.revoke(ending).unwrap();
            cx.flush(0).unwrap();
        });
        let [owner, deaf, dying] =
            ["owner", "deaf", "gone"].map(|name| lookup(&mut self.pair, &puppet, name));
        drop(gone);
        self.pair.right.engine.kill(dying.id);
        self.pair.until(|pair| pair.right.reclaimed(dying.id));
        let own = self.buffer(&puppet, 128 << 10);
        let foreign_buf = self.buffer(&self.stranger.clone(), 64);
        self.pair.steps(200);
        puppet.events();
        let props = Props {
            good,
            read_only,
            revoked,
            foreign: self.foreign,
            foreign_buf,
            owner,
            deaf,
            gone: dying,
            own,
        };
        (puppet, to.id, props)
    }

    fn buffer(&mut self, puppet: &Puppet, bytes: usize) -> Buf {
        let slot = Slot::new();
        let to = slot.clone();
        puppet.act(move |cx| to.set(cx.alloc(bytes).unwrap()));
        let mut buf = None;
        self.pair.until(|_| {
            buf = slot.take();
            buf.is_some()
        });
        buf.unwrap()
    }

    /// Ten times the quota of tries that fail, and a full quota of good ones in the same poll.
    fn tried(&mut self, puppet: &Puppet, props: &Arc<Props>, of: &'static Refusal) {
        let (name, attempt, is_right) = of;
        let (props, said) = (Arc::clone(props), Slot::new());
        let to_said = said.clone();
        puppet.act(move |cx| {
            let mut strange = Vec::new();
            for _ in 0..10 * QUOTA {
                match attempt(&props, cx) {
                    Err(why) if is_right(&why) => {}
                    other => strange.push(format!("{other:?}")),
                }
            }
            let used = gauges(cx);
            let good = (0..QUOTA).map(|token| cx.write(&props.good, 0, &own(&props, 64), token));
            let good: Vec<_> = good.collect();
            let full = gauges(cx);
            let mut beyond = Vec::new();
            for _ in 0..10 * QUOTA {
                beyond.push(cx.write(&props.good, 0, &own(&props, 64), 99));
            }
            to_said.set((strange, used, good, full, beyond));
        });
        self.pair.step();
        let (strange, used, good, full, beyond) = said.take().unwrap();
        assert_eq!(strange, [""; 0], "{name}");
        assert_eq!(used, [Some(0), Some(0)], "{name}");
        assert!(good.iter().all(Result::is_ok), "{name}: {good:?}");
        assert_eq!(full, [Some(QUOTA), Some(64 * QUOTA)], "{name}");
        let error = LimitError {
            limit: Limit::ContextOpsInFlight,
            value: QUOTA,
            in_use: QUOTA,
            wanted: 1,
        };
        assert!(
            beyond
                .iter()
                .all(|tried| *tried == Err(SubmitError::Limit(error))),
            "{name}: {beyond:?}"
        );
        self.drained(puppet, QUOTA, name);
    }

    /// Only what was admitted completes, and then nothing is in use.
    fn drained(&mut self, puppet: &Puppet, count: u64, name: &str) {
        let mut done = Vec::new();
        self.pair.until(|pair| {
            done.extend(completions(&puppet.events()));
            pair.left.used(|usage| usage.ops) == 0 && done.len() as u64 >= count
        });
        self.pair.steps(20);
        done.extend(completions(&puppet.events()));
        let tokens: Vec<_> = done.iter().map(|done| done.token).collect();
        assert_eq!(tokens, (0..count).collect::<Vec<_>>(), "{name}");
        assert!(done.iter().all(|done| done.status == Status::Ok), "{name}");
        let left = [
            self.pair.left.used(|usage| usage.ops),
            self.pair.left.used(|usage| usage.op_bytes),
        ];
        assert_eq!(left, [0, 0], "{name}");
    }

    fn end(&mut self) {
        assert!(!self.deaf.events().is_empty());
        for side in [&self.pair.left, &self.pair.right] {
            assert_eq!(side.stat("lanes_broken"), 0);
            assert_eq!(side.stat("services_panicked"), 0);
        }
    }
}

fn gauges(cx: &Context<'_>) -> [Option<u64>; 2] {
    [
        cx.in_use(Limit::ContextOpsInFlight),
        cx.in_use(Limit::ContextBytesInFlight),
    ]
}

#[test]
fn b05_ten_quotas_of_refused_operations_leave_a_full_one_at_each_point_of_refusal() {
    let mut stage = Stage::new(|_| {});
    let (puppet, _, props) = stage.newcomer();
    let props = Arc::new(props);
    for of in TRIES {
        stage.tried(&puppet, &props, of);
    }
    stage.end();
}

#[test]
fn b06_first_operations_that_are_invalid_leave_a_full_quota() {
    let mut stage = Stage::new(|_| {});
    for of in TRIES {
        let (puppet, id, props) = stage.newcomer();
        let props = Arc::new(props);
        stage.tried(&puppet, &props, of);
        drop(props);
        stage.pair.left.engine.kill(id);
        stage.pair.until(|pair| pair.left.reclaimed(id));
    }
    stage.end();
}

#[test]
fn b05_b06_so_it_is_where_the_device_has_no_atomics() {
    const NO_ATOMICS: &Refusal = &(
        "no atomics",
        |it, cx| cx.fetch_add(&it.good, 0, 1, 1),
        |why| *why == SubmitError::NoAtomics,
    );
    let mut stage = Stage::new(|caps| caps.atomics = false);
    let (puppet, _, props) = stage.newcomer();
    let props = Arc::new(props);
    stage.tried(&puppet, &props, NO_ATOMICS);
    stage.tried(&puppet, &props, NO_ATOMICS);
    stage.end();
}
