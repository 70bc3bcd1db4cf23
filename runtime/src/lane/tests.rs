use keyfence_pmd::{Lkey, RegionId, Rkey, Sge, SgeList, WindowId, WorkId, WorkOp};

use super::*;
use crate::ids::Epoch;
use crate::lane::queue::{Answer, Request};
use crate::lane::remote::RemoteSlot;

pub(super) fn lane() -> Lane {
    let window = |id| Window {
        id: WindowId(id),
        rkey: Rkey(id << 8),
    };
    let setup = LaneSetup {
        qp: QpId(0),
        peer: PeerId(0),
        session: SessionId(0),
        agreed_session: 1,
        number: 0,
        peer_lcore: LcoreId(0),
        repair: 0,
        inline_bytes: 0,
        arena: Region {
            id: RegionId(0),
            lkey: Lkey(0),
            rkey: Rkey(0),
        },
        windows: (0..2).map(window).collect(),
        sizes: LaneSizes {
            send_depth: 8,
            receive_depth: 8,
            contexts: 8,
            fences: 1,
            requests: 1,
            lookups: 1,
            answers: 1,
        },
    };
    let mut lane = Lane::new(setup, 0);
    lane.peer_receive_depth = 8;
    lane
}

#[test]
fn a_lane_with_anything_to_do_is_visited() {
    let works: [fn(&mut Lane); 12] = [
        |lane| lane.phase = LanePhase::Greeting,
        |lane| lane.enqueue_turn(0),
        |lane| lane.link.starved.push(0),
        |lane| lane.link.control.ask(Request::KeepAlive),
        |lane| assert!(lane.link.control.answer(Answer::LaneCredit)),
        |lane| lane.close_with(Closing::Lone(Epoch(0))),
        |lane| lane.regions_due = true,
        |lane| lane.receives_posted += 2,
        |lane| lane.empty_receives.push(0),
        |lane| {
            lane.link.peer_contexts = Box::new([RemoteSlot::default()]);
            lane.refuse(0, 0);
            lane.room_again(0);
        },
        |lane| {
            let send = WorkOp::Send { immediate: None };
            let request = WorkRequest::new(WorkId(0), send, SgeList::EMPTY);
            lane.staged.push(request);
        },
        |lane| {
            let (id, sge) = (WorkId(0), Sge::default());
            lane.staged_receives.push(ReceiveRequest { id, sge });
        },
    ];
    for (number, work) in works.iter().enumerate() {
        let mut lane = lane();
        assert!(!lane.is_at_rest(), "its receives are not posted");
        lane.phase = LanePhase::Up;
        lane.empty_receives.clear();
        assert!(lane.is_at_rest());
        work(&mut lane);
        assert!(!lane.is_at_rest(), "{number}");
    }
}

#[test]
fn r5_a_lanes_credit_is_kept_for_who_is_woken_by_it() {
    let mut lane = lane();
    for context in 0..4 {
        lane.link.starved.push(context);
    }
    // Of eight receives four are left to the classes above.
    lane.credits = SendCredits::new(4 + 3);
    assert_eq!(lane.free_message_credits(), 3);
    lane.wake_starved(1);
    lane.wake_starved(2);
    assert_eq!(lane.free_message_credits(), 0);
    assert_eq!((lane.link.turns.len(), lane.link.starved.len()), (2, 2));
    assert!(!lane.spend_message_credit(5), "others waited longer");
    assert!(lane.spend_message_credit(0));
    assert!(!lane.spend_message_credit(0), "the others are not its");
    assert!(lane.spend_message_credit(1));
    // The other one it has no use for.
    lane.end_promise(1);
    lane.end_promise(0);
    assert!(lane.spend_message_credit(5));
    assert_eq!((lane.link.promised, lane.free_message_credits()), (0, 0));
}
