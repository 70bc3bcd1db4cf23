//! Events of connections: for which queue pairs they come.

use super::bench::{Bench, End};
use super::grants::NOTHING;
use super::{Outcome, ensure, tests};
use crate::completion::WcStatus;
use crate::device::{ControlEvent, DataPath, Device};
use crate::ids::QpId;
use crate::work::SgeList;

tests! {
    a_queue_pair_that_ended_while_it_connected_gets_no_event,
    no_event_names_a_destroyed_queue_pair,
}

/// No more events of this side name the queue pair.
fn hears_nothing<D: Device>(bench: &mut Bench<D>, end: End, of: QpId, why: &str) -> Outcome {
    bench.settle();
    while let Some(event) = bench.side(end).device.poll_event() {
        let names = match &event {
            ControlEvent::Connected { qp, .. } | ControlEvent::Rejected { qp, .. } => *qp == of,
            ControlEvent::ConnectRequest { .. } => false,
        };
        ensure!(!names, "{why}: {event:?}");
    }
    Ok(())
}

fn a_queue_pair_that_ended_while_it_connected_gets_no_event<D: Device>(
    bench: &mut Bench<D>,
) -> Outcome {
    for (released, accepts) in [(false, true), (true, true), (false, false), (true, false)] {
        let a = bench.a.device.create_qp(&bench.config(End::A))?;
        let b = bench.b.device.create_qp(&bench.config(End::B))?;
        bench.a.device.start_connect(a, &bench.address, &[])?;
        let (id, _) = bench.connect_request()?;
        match released {
            false => bench.a.device.error_qp(a)?,
            true => bench.a.path.release_qp(a),
        }
        let answered = match accepts {
            true => bench.b.device.accept(id, b, &[]),
            false => bench.b.device.reject(id, &[]),
        };
        hears_nothing(bench, End::A, a, "an event after the end")?;
        // A device that cannot know at once lets the other side connect, to nobody.
        if accepts && answered.is_ok() {
            let work = bench.work(NOTHING, SgeList::EMPTY);
            bench.fail(End::B, b, work, WcStatus::RetryExceeded)?;
        }
        // That it did so is no matter of this test.
        bench.b.events.clear();
    }
    Ok(())
}

fn no_event_names_a_destroyed_queue_pair<D: Device>(bench: &mut Bench<D>) -> Outcome {
    for accepts in [true, false] {
        let a = bench.a.device.create_qp(&bench.config(End::A))?;
        let b = bench.b.device.create_qp(&bench.config(End::B))?;
        bench.a.device.start_connect(a, &bench.address, &[])?;
        let (id, _) = bench.connect_request()?;
        match accepts {
            true => bench.b.device.accept(id, b, &[])?,
            false => bench.b.device.reject(id, &[])?,
        }
        // The event is there, or on its way.
        bench.settle();
        for (end, qp) in [(End::A, a), (End::B, b)] {
            let side = bench.side(end);
            side.path.release_qp(qp);
            side.device.destroy_qp(qp)?;
            hears_nothing(bench, end, qp, "an event after the destruction")?;
        }
    }
    Ok(())
}
