//! Which CPUs threads run on.

use std::process::Command;

use keyfence::RunError;
use keyfence::config::IdlePolicy;
use keyfence::ids::LcoreId;
use keyfence::pmd::soft::{Fabric, SoftConfig};

use crate::{Rig, clock, engine};

const BACKOFF: IdlePolicy = IdlePolicy::Backoff {
    max_sleep_ns: 1_000_000,
};

/// The line of a `/proc` status that says where its thread may run.
fn allowed(status: &str) -> String {
    let line = status
        .lines()
        .find(|line| line.starts_with("Cpus_allowed_list:"));
    line.expect("the kernel lists CPUs").to_owned()
}

fn own() -> String {
    allowed(&std::fs::read_to_string("/proc/thread-self/status").unwrap())
}

fn of_child() -> String {
    let child = Command::new("cat").arg("/proc/self/status").output();
    allowed(&String::from_utf8(child.unwrap().stdout).unwrap())
}

fn of_lcore(name: &str) -> String {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of_task = |task: std::io::Result<std::fs::DirEntry>| {
        let folder = task.unwrap().path();
        let comm = std::fs::read_to_string(folder.join("comm")).ok()?;
        let status = std::fs::read_to_string(folder.join("status")).ok()?;
        (comm.trim() == name).then(|| allowed(&status))
    };
    tasks.filter_map(of_task).next().expect("the lcore runs")
}

#[test]
fn b09_the_affinity_of_caller_and_children_is_what_it_was() {
    let before = own();
    let mut engine = {
        let device = Fabric::new().device(SoftConfig::default()).unwrap();
        engine("b09", "right", &[0], BACKOFF, device)
    };
    let running = engine.start(clock()).unwrap();
    assert_eq!(of_lcore("b09-lcore0"), "Cpus_allowed_list:\t0");
    assert_eq!(own(), before);
    assert_eq!(of_child(), before);
    assert_eq!(std::thread::spawn(own).join().unwrap(), before);
    running.join();
    assert_eq!((own(), of_child()), (before.clone(), before));
}

#[test]
fn b20_a_cpu_that_is_not_to_be_had_is_named_with_those_that_are() {
    let may_use = core_affinity::get_core_ids().unwrap();
    let may_use: Vec<usize> = may_use.into_iter().map(|core| core.id).collect();
    for missing in [1023, 1024, 4095] {
        let device = Fabric::new().device(SoftConfig::default()).unwrap();
        let mut engine = engine("b20", "right", &[0, missing], BACKOFF, device);
        for _ in 0..2 {
            let refused = engine.start(clock()).unwrap_err();
            let text = refused.to_string();
            let RunError::Pin {
                lcore,
                cpu,
                allowed,
            } = refused
            else {
                panic!("{text}");
            };
            assert_eq!((lcore, cpu), (LcoreId(1), missing));
            assert_eq!(allowed, may_use);
            assert!(
                text.contains(&format!("CPU {missing}")) && text.contains(&format!("{may_use:?}"))
            );
        }
        // Nothing was started by half: the engine has its lcores still.
        assert!(engine.take_lcore(LcoreId(0)).is_some());
        assert!(engine.take_lcore(LcoreId(1)).is_some());
    }
}

/// Both lcores, both clients and the control side share CPU 0.
fn on_one_cpu(idle: IdlePolicy, messages: u64) {
    let body = move || {
        assert!(core_affinity::set_for_current(core_affinity::CoreId {
            id: 0
        }));
        let mut rig = Rig::start([0, 0], idle, clock()).unwrap();
        let (mut from, mut to, id) = rig.clients();
        for number in 0..messages {
            rig.message(&mut from, &mut to, id, number);
        }
        drop((from, to));
        rig.stop();
    };
    std::thread::spawn(body).join().unwrap();
}

#[test]
fn b01_spinning_lcores_and_their_clients_share_one_cpu() {
    on_one_cpu(IdlePolicy::Spin, 20);
}

#[test]
fn b01_backing_off_lcores_and_their_clients_share_one_cpu() {
    on_one_cpu(BACKOFF, 200);
}
