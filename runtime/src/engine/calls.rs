//! Control calls that end something or replace it. One that is late is made again, later each time: its return is the late proof.

use keyfence_pmd::{ControlError, Device, QpId, RegionId, WindowId};

use crate::engine::backoff::Backoff;
use crate::engine::command::Command;
use crate::engine::control::ControlSide;
use crate::engine::domain::ended;
use crate::grant::keys::KeyId;
use crate::ids::{LaneId, LcoreId, SessionId};

/// What a key ends with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyObject {
    Window(WindowId),
    Region(RegionId),
}

/// Such a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Dealloc {
        lcore: LcoreId,
        key: KeyId,
        object: KeyObject,
    },
    EndLane {
        lcore: LcoreId,
        lane: LaneId,
        qp: QpId,
    },
    /// Of a lane that is gone.
    Window(WindowId),
    /// For a lane that lost one.
    Replace {
        lcore: LcoreId,
        lane: LaneId,
        qp: QpId,
        place: u32,
    },
    Error {
        lcore: LcoreId,
        lane: LaneId,
        qp: QpId,
    },
    /// The protection domain of a session that has ended.
    EndDomain(SessionId),
}

/// A call that was late.
#[derive(Debug)]
pub(super) struct LateCall {
    call: Call,
    again_ns: u64,
    backoff: Backoff,
}

impl<D: Device> ControlSide<D> {
    /// Makes the calls again whose time has come. Returns whether there were any.
    pub fn call_again(&mut self) -> bool {
        let now_ns = self.now_ns;
        let due = |late: &mut LateCall| now_ns >= late.again_ns;
        let due: Vec<_> = self.late_calls.extract_if(.., due).collect();
        for late in &due {
            self.call(late.call, late.backoff);
        }
        !due.is_empty()
    }

    /// Deallocates a key's window, or deregisters its region. One late call for each is made again, however often it is asked for.
    pub fn dealloc(&mut self, lcore: LcoreId, key: KeyId, object: KeyObject) {
        let waits = |late: &LateCall| matches!(late.call, Call::Dealloc { object: known, .. } if known == object);
        self.late_calls.retain(|late| !waits(late));
        let call = Call::Dealloc { lcore, key, object };
        if !self.call(call, Backoff::default()) {
            self.send(lcore, Command::Deallocated { key, done: false });
        }
    }

    /// Allocates a window for a lane in the place of a deallocated one, sooner or later, unless the lane ends first.
    pub fn replace_window(&mut self, lcore: LcoreId, lane: LaneId, qp: QpId, place: u32) {
        let call = Call::Replace {
            lcore,
            lane,
            qp,
            place,
        };
        self.call(call, Backoff::default());
    }

    /// Ends a drained lane: its windows that no key has, then its queue pair.
    pub fn end_lane(&mut self, lcore: LcoreId, lane: LaneId, qp: QpId) {
        self.call(Call::EndLane { lcore, lane, qp }, Backoff::default());
    }

    /// Moves a queue pair to error. The lcore hears of it only when it is: until then an invalidation on it may yet be executed (R3).
    pub fn error_lane(&mut self, lcore: LcoreId, lane: LaneId, qp: QpId) {
        self.call(Call::Error { lcore, lane, qp }, Backoff::default());
    }

    /// Whether the call has done its work. What is gone was ended by a call that came back late.
    pub fn call(&mut self, call: Call, mut backoff: Backoff) -> bool {
        let done = match call {
            Call::Dealloc {
                object: KeyObject::Window(window),
                ..
            }
            | Call::Window(window) => matches!(
                self.device.dealloc_window(window),
                Ok(()) | Err(ControlError::NoSuchWindow(_))
            ),
            Call::Dealloc {
                object: KeyObject::Region(region),
                ..
            } => ended(self.device.deregister(region)),
            Call::EndDomain(session) => self.try_end_domain(session),
            Call::EndLane { lcore, lane, qp } => {
                self.dealloc_spare_windows(lcore, lane);
                matches!(
                    self.device.destroy_qp(qp),
                    Ok(()) | Err(ControlError::NoSuchQp(_))
                )
            }
            Call::Error { qp, .. } => matches!(
                self.device.error_qp(qp),
                Ok(()) | Err(ControlError::NoSuchQp(_))
            ),
            Call::Replace {
                lcore,
                lane,
                qp,
                place,
            } => self.replaced(lcore, lane, qp, place),
        };
        if done {
            self.call_done(call);
        } else {
            let wait_ns = backoff.failed(self.patience.call, &mut self.random);
            self.late_calls.push(LateCall {
                call,
                again_ns: self.now_ns.saturating_add(wait_ns),
                backoff,
            });
        }
        done
    }

    fn call_done(&mut self, call: Call) {
        match call {
            Call::Dealloc { lcore, key, object } => {
                self.send(lcore, Command::Deallocated { key, done: true });
                if let KeyObject::Region(_) = object {
                    self.key_ended(lcore, key);
                }
            }
            Call::EndLane { lcore, lane, .. } => {
                let record = self.peers.lane_mut(lcore, lane);
                let (left, session) = record
                    .map(|record| (core::mem::take(&mut record.windows), record.session))
                    .unzip();
                for window in left.into_iter().flatten() {
                    self.call(Call::Window(window), Backoff::default());
                }
                self.send(lcore, Command::QpDestroyed(lane));
                if let Some(session) = session {
                    self.qp_gone(session);
                }
            }
            Call::EndDomain(session) => self.domain_ended(session),
            Call::Error { lcore, lane, .. } => self.send(lcore, Command::QpInError(lane)),
            Call::Window(_) | Call::Replace { .. } => {}
        }
    }

    /// Whether the lane has its new window, or needs none any more.
    fn replaced(&mut self, lcore: LcoreId, lane: LaneId, qp: QpId, place: u32) -> bool {
        let known = self.peers.lane_mut(lcore, lane);
        let Some(record) = known.filter(|record| record.qp == qp) else {
            return true;
        };
        let window = match self.device.alloc_window(qp) {
            Ok(window) => window,
            Err(error) => return matches!(error, ControlError::NoSuchQp(_)),
        };
        record.windows.push(window.id);
        let new = Command::WindowReplaced {
            lane,
            qp,
            place,
            window,
        };
        self.send(lcore, new);
        true
    }

    fn dealloc_spare_windows(&mut self, lcore: LcoreId, lane: LaneId) {
        if let Some(record) = self.peers.lane_mut(lcore, lane) {
            let device = &self.device;
            let stays = |window: &WindowId| device.dealloc_window(*window).is_err();
            record.windows.retain(stays);
        }
    }
}
