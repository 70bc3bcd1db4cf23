//! Key mode `region`: what is its own (`domains`, `keys`, `restarts`), and the tests of the promises over again with engines whose keys are regions
//! (`pair::KEY_MODE`).

#![allow(
    clippy::duplicate_mod,
    reason = "each of these files is a test binary with a `pair` of its own"
)]

mod domains;
mod keys;
mod knocks;
mod restarts;
mod shared;

#[path = "../drops.rs"]
mod drops;
#[path = "../grants.rs"]
mod grants;
#[path = "../r10_ends.rs"]
mod r10_ends;
#[path = "../r12_admission.rs"]
mod r12_admission;
#[path = "../r12_hostile.rs"]
mod r12_hostile;
#[path = "../r12_restarts.rs"]
mod r12_restarts;
#[path = "../r1_destructor.rs"]
mod r1_destructor;
#[path = "../r1_kills.rs"]
mod r1_kills;
#[path = "../r2_byes.rs"]
mod r2_byes;
#[path = "../r3_flushes.rs"]
mod r3_flushes;
#[path = "../r5_lane_repair/main.rs"]
mod r5_lane_repair;
#[path = "../r5_stalled.rs"]
mod r5_stalled;
#[path = "../r6_faults.rs"]
mod r6_faults;
#[path = "../r7_random/main.rs"]
mod r7_random;
#[path = "../r7_sessions.rs"]
mod r7_sessions;
#[path = "../r8_parked.rs"]
mod r8_parked;
#[path = "../r9_limits.rs"]
mod r9_limits;
#[path = "../r9_peers.rs"]
mod r9_peers;
