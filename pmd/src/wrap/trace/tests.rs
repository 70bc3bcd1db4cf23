//! Every event is recorded, in order, and read back as it was.

use super::*;
use crate::ids::{LcoreId, WorkId};
use crate::work::{Remote, Rights, Sge, SgeList, WorkOp};
use crate::wrap::script::{Script, bind, invalidate, qp_config};
use crate::{CompletionKind as Kind, Lkey, RegionId, Rkey, WcStatus as Status};

#[test]
fn every_event_reads_back_as_it_was_written() {
    let qp = QpId(0xffff_fff0);
    let remote = Remote {
        address: u64::MAX,
        rkey: Rkey::new(0xff_ffff, 0xff),
    };
    let window = Window {
        id: WindowId(3),
        rkey: Rkey::new(3, 0),
    };
    let ops = [
        WorkOp::Write {
            remote,
            immediate: None,
        },
        WorkOp::Write {
            remote,
            immediate: Some(1),
        },
        WorkOp::Read { remote },
        WorkOp::Send { immediate: None },
        WorkOp::Send { immediate: Some(0) },
        WorkOp::FetchAdd { remote, add: 1 },
        WorkOp::CompareSwap {
            remote,
            expected: 1,
            desired: 2,
        },
        WorkOp::Bind {
            window: window.id,
            region: RegionId(1),
            address: 5,
            len: 1 << 40,
            rights: Rights::ALL,
            rkey: window.rkey,
        },
        WorkOp::Invalidate { rkey: window.rkey },
    ];
    let sges = SgeList::one(Sge::new(u64::MAX, u32::MAX, Lkey(1)));
    let posted = ops.map(|op| Event::posted(qp, &WorkRequest::new(WorkId(u64::MAX), op, sges)));
    let mut events = posted.to_vec();
    for status in [Status::Success, Status::General, Status::RnrRetryExceeded] {
        for kind in [Kind::Write, Kind::ReceiveWriteImmediate] {
            for immediate in [None, Some(u32::MAX)] {
                events.push(Event::Completed(Completion {
                    id: WorkId(7),
                    qp,
                    status,
                    kind,
                    bytes: u32::MAX,
                    immediate,
                }));
            }
        }
    }
    events.push(Event::Released { qp });
    events.push(Event::Control {
        call: ControlCall::DeallocWindow,
        objects: [u64::MAX, 1],
        made: None,
    });
    for event in events {
        assert_eq!(Event::decode(&event.encode()), Some(event));
    }
    assert_eq!(Event::decode(&[u64::MAX; 7]), None);
}

#[test]
fn posts_completions_and_control_calls_are_recorded_in_one_order() {
    let script = Script::default();
    let trace = Trace::new(script.device(), 64);
    let mut path = trace.open_path(LcoreId(2)).unwrap();
    let qp = trace.create_qp(&qp_config(8)).unwrap();
    let window = trace.alloc_window(qp).unwrap();
    script.state().take = Some(1);
    let burst = [
        bind(0x11, &window, 1, 4096, 8),
        invalidate(0x12, &window, 1),
    ];
    assert_eq!(path.post_burst(qp, &burst), 1);
    script.completes(qp, 0x11, Status::Flushed, Kind::Bind);
    assert_eq!(path.poll_burst(&mut [Completion::EMPTY; 2]), 1);
    path.release_qp(qp);
    trace.destroy_qp(qp).unwrap();
    let log = trace.log();
    let records = log.records();
    assert!(
        records
            .windows(2)
            .all(|pair| pair[0].sequence < pair[1].sequence)
    );
    let text = log.to_string();
    let wanted = [
        "control CreateQp 1 0 -> 1",
        "control AllocWindow 1 0 -> 2",
        "lcore 2 qp 1 posted Bind 0x11 bytes 8 local 0x1000 remote 0x0 key Rkey(0x10002/1)",
        "lcore 2 qp 1 took 1 of 2",
        "lcore 2 qp 1 failed 0x11 Flushed",
        "lcore 2 qp 1 released",
        "control DestroyQp 1 0 -> 0",
    ];
    let lines: Vec<&str> = text
        .lines()
        .map(|line| line.split_once(' ').unwrap().1)
        .collect();
    assert_eq!(lines, wanted);
}

#[test]
fn the_newest_records_stay_and_the_lost_are_counted() {
    let script = Script::default();
    let trace = Trace::new(script.device(), 4);
    let mut path = trace.open_path(LcoreId(0)).unwrap();
    let qp = trace.create_qp(&qp_config(8)).unwrap();
    for id in 0..10 {
        script.completes(qp, id, Status::Success, Kind::Write);
        path.poll_burst(&mut [Completion::EMPTY; 1]);
    }
    let log = trace.log();
    assert_eq!(log.lost(), 6);
    let ids: Vec<u64> = log
        .records()
        .iter()
        .filter_map(|record| match record.event {
            Event::Completed(done) => Some(done.id.0),
            _ => None,
        })
        .collect();
    assert_eq!(ids, [6, 7, 8, 9]);
    assert!(log.to_string().starts_with("... 6 older records"));
}

#[test]
fn a_reader_beside_the_writer_sees_whole_records() {
    let script = Script::default();
    let trace = Trace::new(script.device(), 8);
    let mut path = trace.open_path(LcoreId(0)).unwrap();
    let qp = trace.create_qp(&qp_config(8)).unwrap();
    let log = trace.log();
    let reader = std::thread::spawn(move || {
        for _ in 0..2000 {
            for record in log.records() {
                if let Event::Completed(done) = record.event {
                    assert_eq!(done.id.0, u64::from(done.bytes));
                }
            }
        }
    });
    for id in 0..5000 {
        script.state().completions.push_back(Completion {
            id: WorkId(id),
            qp,
            status: Status::Success,
            bytes: id as u32,
            ..Completion::EMPTY
        });
        path.poll_burst(&mut [Completion::EMPTY; 1]);
    }
    reader.join().unwrap();
}
