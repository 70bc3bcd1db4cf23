//! What an authentic peer says must fit too.

use super::{BOTH, Lane, hello};
use crate::session::pace::PaceMisfit;
use crate::session::refusal::JoinRefusal;
use crate::wire::{Hello, Name, Role};

/// What a peer that has the secret says wrongly is found too.
#[test]
fn r12_an_authentic_hello_that_does_not_fit_its_lane_is_refused() {
    type Change = fn(&mut Hello<'static>);
    let cases: [(Change, JoinRefusal); 15] = [
        (|hello| hello.incarnation.0 += 1, JoinRefusal::Restarted),
        (|hello| hello.session += 1, JoinRefusal::Hello),
        (|hello| hello.lane += 1, JoinRefusal::Hello),
        (|hello| hello.source_lcore.0 += 1, JoinRefusal::Hello),
        (|hello| hello.target_lcore.0 += 1, JoinRefusal::Hello),
        (|hello| hello.repair += 1, JoinRefusal::Hello),
        (|hello| hello.qp += 1, JoinRefusal::Hello),
        (
            |hello| hello.name = Name::new("other").unwrap(),
            JoinRefusal::Hello,
        ),
        (
            |hello| hello.siblings = 3,
            JoinRefusal::Lanes { ours: 4, theirs: 3 },
        ),
        (|hello| hello.lcores = 0, JoinRefusal::Hello),
        (|hello| hello.lcores = 1, JoinRefusal::Hello),
        (|hello| hello.lcores = 65, JoinRefusal::Hello),
        (|hello| hello.frame_bytes = 255, JoinRefusal::Hello),
        (|hello| hello.receive_depth = 3, JoinRefusal::Hello),
        (|hello| hello.messages_per_context = 0, JoinRefusal::Hello),
    ];
    let lane = Lane::first().proven();
    for role in BOTH {
        for (at, (change, expected)) in cases.iter().enumerate() {
            let mut hello = hello(role, &lane.names);
            change(&mut hello);
            let heard = lane.hear(role, &lane.signed(role, hello));
            assert_eq!(heard, Err(expected.clone()), "{role:?} {at}");
        }
        let mut turned = hello(role, &lane.names);
        turned.role = match role {
            Role::Connecting => Role::Accepting,
            Role::Accepting => Role::Connecting,
        };
        let heard = lane.hear(role, &lane.signed(role, turned));
        assert_eq!(heard, Err(JoinRefusal::Role));
    }
}

#[test]
fn r6_limits_that_one_can_not_fence_in_time_are_refused_with_the_numbers() {
    let lane = Lane::first().proven();
    for role in BOTH {
        let mut fast = hello(role, &lane.names);
        fast.fence_timeout_ns = 976_562;
        let misfit = PaceMisfit {
            cap_bytes: 1 << 20,
            slowest_rate_bytes_per_s: 1 << 30,
            fence_timeout_ns: 976_562,
        };
        let heard = lane.hear(role, &lane.signed(role, fast));
        assert_eq!(heard, Err(JoinRefusal::OurPace(misfit)));
        // Half a nanosecond more than that is needed.
        fast.fence_timeout_ns = 976_563;
        assert_eq!(lane.hear(role, &lane.signed(role, fast)), Ok(()));

        let mut slow = hello(role, &lane.names);
        slow.slowest_rate = 1 << 29;
        let misfit = PaceMisfit {
            cap_bytes: 1 << 20,
            slowest_rate_bytes_per_s: 1 << 29,
            fence_timeout_ns: 1_000_000,
        };
        let heard = lane.hear(role, &lane.signed(role, slow));
        assert_eq!(heard, Err(JoinRefusal::TheirPace(misfit)));
    }
}
