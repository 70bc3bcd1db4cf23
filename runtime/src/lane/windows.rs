//! The windows of a lane: what their keys are, and the replacement of those that were deallocated.

use keyfence_pmd::{Rkey, Window};

use crate::lane::Lane;
use crate::random::mix;

/// A window of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneWindow {
    /// The device's.
    pub window: Window,
    /// The tag of the next bind.
    pub next_tag: u8,
    /// Whether it was given to the control side to be deallocated.
    pub deallocated: bool,
    /// With a planted fault alone: the key that was not invalidated when it should have been.
    pub stale: Option<Rkey>,
}

impl LaneWindow {
    /// The key of the next bind.
    pub fn key(&self) -> Rkey {
        self.window.rkey.with_tag(self.next_tag)
    }
}

impl Lane {
    /// Takes a deallocated window that is to be replaced by a new one. None is while a value of a deallocated one may still be known to the peer: the device
    /// may give the same value to the new one (R8).
    pub fn take_spent_window(&mut self) -> Option<u32> {
        if self.spent_windows.len() as u32 != self.deallocated_windows {
            return None;
        }
        let spent = self.spent_windows.pop()?;
        self.deallocated_windows -= 1;
        Some(spent)
    }

    /// Puts a new window in the place of one that was taken.
    pub fn replace_window(&mut self, place: u32, window: Window) {
        let entry = &mut self.windows[place as usize];
        assert!(
            entry.deallocated,
            "R4: a window that exists is not replaced"
        );
        entry.window = window;
        entry.deallocated = false;
        self.free_windows.push(place);
    }
}

/// The windows with a first tag each, another one in each session as a rule (R8: tags start at random). It is no secret: it follows from the incarnation, which
/// peers are told. What keeps a key from others is the lane that it is bound on (R12).
pub(super) fn lane_windows(windows: Vec<Window>, tag_seed: u64) -> Box<[LaneWindow]> {
    windows
        .into_iter()
        .zip(0_u64..)
        .map(|(window, index)| LaneWindow {
            window,
            next_tag: mix(tag_seed ^ index) as u8,
            deallocated: false,
            stale: None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use keyfence_pmd::WindowId;

    use super::*;

    /// As the engine does: the window's key is to be ended by its deallocation.
    fn deallocate(lane: &mut Lane) {
        let place = lane.free_windows.pop().unwrap();
        lane.windows[place as usize].deallocated = true;
        lane.deallocated_windows += 1;
    }

    #[test]
    fn r8_no_window_is_replaced_while_the_value_of_another_deallocated_one_is_known() {
        let mut lane = crate::lane::tests::lane();
        deallocate(&mut lane);
        deallocate(&mut lane);
        assert_eq!(lane.take_spent_window(), None, "both are parked");
        lane.spent_windows.push(0);
        assert_eq!(lane.take_spent_window(), None, "one is parked");
        lane.spent_windows.push(1);
        assert_eq!(lane.take_spent_window(), Some(1));
        assert_eq!(lane.take_spent_window(), Some(0));
        assert_eq!(lane.take_spent_window(), None);
        let new = Window {
            id: WindowId(7),
            rkey: Rkey(7 << 8),
        };
        lane.replace_window(1, new);
        assert_eq!(lane.free_windows, [1]);
        assert_eq!(lane.windows[1].window, new);
        assert!(!lane.windows[1].deallocated);
    }
}
