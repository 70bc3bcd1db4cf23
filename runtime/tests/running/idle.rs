//! What an lcore without work costs, and how soon it is back.

use std::sync::mpsc::sync_channel;

use keyfence::config::IdlePolicy;

use crate::{Rig, clock};

const MAX_SLEEP_NS: u64 = 1_000_000;

/// CPU time of a thread of this process, in ns.
fn cpu_ns(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of_task = |task: std::io::Result<std::fs::DirEntry>| {
        let folder = task.unwrap().path();
        let comm = std::fs::read_to_string(folder.join("comm")).ok()?;
        let times = std::fs::read_to_string(folder.join("schedstat")).ok()?;
        (comm.trim() == name).then(|| times.split(' ').next().unwrap().parse().unwrap())
    };
    tasks.filter_map(of_task).next().expect("the lcore runs")
}

#[test]
fn b34_a_backing_off_lcore_without_work_costs_little_and_wakes_in_time() {
    let idle = IdlePolicy::Backoff {
        max_sleep_ns: MAX_SLEEP_NS,
    };
    let time = clock();
    // The lcores' own clock tells when an idle second is over.
    let (tick, ticks) = sync_channel(1);
    let mut second = 0;
    let shared = std::sync::Arc::new(std::sync::Mutex::new(move |now_ns: u64| {
        if now_ns / 1_000_000_000 != second {
            second = now_ns / 1_000_000_000;
            // A tick that nobody has taken yet is enough.
            let _ = tick.try_send(second);
        }
    }));
    let ticking = move || {
        let now_ns = time();
        (shared.lock().unwrap())(now_ns);
        now_ns
    };
    let mut rig = Rig::start([0, 0], idle, ticking).unwrap();
    while ticks.try_recv().is_ok() {}
    ticks.recv().unwrap();
    let before: Vec<u64> = ["left-lcore0", "right-lcore0"].map(cpu_ns).to_vec();
    let start_ns = (rig.clock)();
    ticks.recv().unwrap();
    let wall_ns = (rig.clock)() - start_ns;
    for (name, before_ns) in ["left-lcore0", "right-lcore0"].into_iter().zip(before) {
        let used_ns = cpu_ns(name) - before_ns;
        assert!(
            used_ns * 20 < wall_ns,
            "{name} used {used_ns} of {wall_ns} ns"
        );
    }
    let (mut from, mut to, id) = rig.clients();
    let mut best_ns = u64::MAX;
    for number in 0..20 {
        // Both lcores fall asleep: their longest sleep has passed a few times.
        let asleep_ns = (rig.clock)() + 4 * MAX_SLEEP_NS;
        rig.until(|rig| (rig.clock)() > asleep_ns);
        let start_ns = (rig.clock)();
        rig.message(&mut from, &mut to, id, number);
        best_ns = best_ns.min((rig.clock)() - start_ns);
    }
    // Each of the two sleeps once at most; and ten times that, since a clock is a clock.
    assert!(best_ns < 2 * MAX_SLEEP_NS * 10, "{best_ns} ns");
    drop((from, to));
    rig.stop();
}
