//! B31, R7: contexts are opened and killed thousands of times with operations in flight. What the process has in memory, descriptors and threads, and what
//! the engines have of pools and keys, does not grow.

mod pair;

use keyfence::config::KeyMode;
use keyfence::ids::{LcoreId, RemoteContext};
use keyfence::pmd::soft::{Fabric, SoftConfig, SoftDevice};
use keyfence::{Client, ClientConfig, ClientEvent, Event, Import, Lease, Local, Rights, Usage};
use pair::judged::{fast_limits, short_timeouts};
use pair::scene::lookup;
use pair::{Pair, Puppet, Side, builder};

const BYTES: usize = 256 << 10;
const MIB: u64 = 1 << 20;

/// What a process has, by the kernel's word.
#[derive(Debug)]
struct Held {
    rss_bytes: u64,
    descriptors: usize,
    threads: usize,
}

impl Held {
    fn now() -> Self {
        // The sum over all mappings is exact; what /proc/self/statm says is off by what each thread has not yet passed on.
        let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let line = text.lines().find(|line| line.starts_with("Rss:")).unwrap();
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        let entries = |path: &str| std::fs::read_dir(path).unwrap().count();
        Self {
            rss_bytes: kib << 10,
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
        }
    }
}

/// What the engines have in use.
#[derive(PartialEq, Eq, Debug)]
struct InUse {
    usage: Vec<Usage>,
    buffers: [usize; 2],
    receives: [usize; 2],
}

impl InUse {
    fn of(pair: &Pair<SoftDevice>) -> Self {
        let sides = [&pair.left, &pair.right];
        let lcores = sides.into_iter().flat_map(|side| &side.lcores);
        Self {
            usage: lcores.map(|lcore| lcore.usage()).collect(),
            buffers: sides.map(|side| side.engine.buffers_in_use()),
            receives: sides.map(|side| side.engine.receives_in_use()),
        }
    }
}

fn new_pair(mode: KeyMode) -> Pair<SoftDevice> {
    let fabric = Fabric::new();
    let side = |name, peer| {
        builder(name, peer, 1)
            .key_mode(mode)
            .limits(fast_limits())
            .timeouts(short_timeouts())
    };
    Pair::on(
        side("left", "right"),
        fabric.device(SoftConfig::default()).unwrap(),
        side("right", "left"),
        fabric.device(SoftConfig::default()).unwrap(),
    )
}

/// Opens memory to a context of the other side, three times, and takes one back.
fn give(owner: &Puppet, to: RemoteContext) {
    owner.act(move |cx| {
        let grants = [0; 3].map(|_| {
            let buf = cx.alloc(BYTES).unwrap();
            cx.grant(&buf, 0..BYTES, Rights::ALL, to, Lease::Configured)
                .unwrap()
        });
        cx.revoke(grants[2]).unwrap();
    });
}

fn imports(pair: &mut Pair<SoftDevice>, holder: &Puppet) -> Vec<Import> {
    let mut imports = Vec::new();
    pair.until(|_| {
        imports.extend(holder.events().into_iter().filter_map(|event| match event {
            Event::Granted(import) => Some(import),
            _ => None,
        }));
        imports.len() >= 2
    });
    imports
}

/// Everything at once, and nothing waited for.
fn begin(puppet: &Puppet, imports: Vec<Import>, to: RemoteContext) {
    puppet.act(move |cx| {
        let buf = cx.alloc(BYTES).unwrap();
        let local = [Local::prefix(&buf, BYTES)];
        for import in &imports[..2] {
            // Either may be the one that is taken back.
            let _ = cx.write(import, 0, &local, 1);
            let _ = cx.read(import, 0, &local, 2);
            let _ = cx.write_with_immediate(import, 0, &local, 3, 3);
            let _ = cx.fetch_add(import, 0, 1, 4);
        }
        let _ = cx.send(to, b"?", 5);
        let _ = cx.send_from(to, &[Local::prefix(&buf, 64)], 6);
        cx.flush(7).unwrap();
    });
}

/// A client with a buffer granted and a message under way.
fn client(pair: &mut Pair<SoftDevice>, to: RemoteContext) -> Client {
    let config = ClientConfig::default();
    let left = &mut pair.left.engine;
    let mut client = left.open_client(LcoreId(0), "client", 1, config).unwrap();
    client.alloc(4096, 1).unwrap();
    let mut buf = None;
    pair.until(|_| {
        if let Some(ClientEvent::Allocated { result, .. }) = client.poll_event() {
            buf = result.ok();
        }
        buf.is_some()
    });
    let buf = buf.unwrap();
    client
        .grant(buf, 0..64, Rights::ALL, to, Lease::None, 2)
        .unwrap();
    client
}

fn gone(side: &Side<SoftDevice>, name: &str) -> bool {
    side.id_of(name).is_some_and(|id| side.reclaimed(id))
}

/// Opens contexts on both sides, has them work for each other, and kills one in the middle of it, then the other.
fn cycle(pair: &mut Pair<SoftDevice>, number: u64) {
    let (holder, owner) = (pair.left.puppet(0, "holder"), pair.right.puppet(0, "owner"));
    pair.steps(5);
    let holder_id = lookup(pair, &owner, "holder");
    let owner_id = lookup(pair, &holder, "owner");
    give(&owner, holder_id);
    give(&holder, owner_id);
    let (of_holder, of_owner) = (imports(pair, &holder), imports(pair, &owner));
    let client = client(pair, owner_id);
    begin(&holder, of_holder, owner_id);
    begin(&owner, of_owner, holder_id);
    pair.steps(1 + number as usize % 3);
    match number % 4 {
        0 => pair.left.engine.kill(holder_id.id),
        1 => pair.right.engine.kill(owner_id.id),
        2 => holder.act(|cx| cx.close()),
        _ => owner.act(|cx| std::panic::resume_unwind(Box::new(cx.id()))),
    }
    pair.steps(number as usize % 7);
    drop(client);
    pair.left.engine.kill(holder_id.id);
    pair.right.engine.kill(owner_id.id);
    pair.until(|pair| {
        gone(&pair.left, "holder") && gone(&pair.left, "client") && gone(&pair.right, "owner")
    });
    pair.left.events.clear();
    pair.right.events.clear();
}

fn cycles(mode: KeyMode, count: u64) {
    let mut pair = new_pair(mode);
    let at_rest = |pair: &mut Pair<SoftDevice>| {
        pair.until(|pair| pair.left.parked() + pair.right.parked() == 0);
        pair.steps(2_000);
    };
    at_rest(&mut pair);
    let before = InUse::of(&pair);
    let mut early = None;
    for number in 0..count {
        cycle(&mut pair, number);
        if number + 1 == count / 10 {
            at_rest(&mut pair);
            early = Some(Held::now());
        }
    }
    at_rest(&mut pair);
    let (early, late) = (early.unwrap(), Held::now());
    println!("{mode:?}, {count} cycles: {early:?}, {late:?}");
    assert_eq!(InUse::of(&pair), before);
    assert_eq!(late.descriptors, early.descriptors);
    assert_eq!(late.threads, early.threads);
    assert!(
        late.rss_bytes <= early.rss_bytes + MIB,
        "{early:?}, {late:?}"
    );
    let with_ops = [&pair.left, &pair.right].map(|side| side.stat("cordons_with_ops_in_flight"));
    let enough = with_ops.iter().sum::<u64>() > count * 9 / 10;
    assert!(enough, "{with_ops:?} of {count}");
}

/// In one test, since the whole process is measured.
#[test]
fn b31_10000_cycles_leave_nothing_behind() {
    cycles(KeyMode::Window, 10_000);
    cycles(KeyMode::Region, 10_000);
}

#[test]
#[ignore = "minutes, and alone in its process: .ci/full leaks"]
fn b31_a_million_cycles_leave_nothing_behind() {
    cycles(KeyMode::Window, 1_000_000);
    cycles(KeyMode::Region, 1_000_000);
}
