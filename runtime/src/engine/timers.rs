//! The timers of one lcore: a queue for each kind. All of one kind run for the same time, so a queue is in the order of its deadlines; arming,
//! disarming and expiry touch a timer's neighbours and nothing else, however many are armed.

use crate::ids::Epoch;
use crate::reclaim::Timer;

/// No place.
const NIL: u32 = u32::MAX;

/// What each kind has.
#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u32,
    last: u32,
    /// The deadline of the first; never, if there is none.
    due_ns: u64,
}

/// One timer, if it is armed.
#[derive(Clone, Copy, Debug)]
struct Place {
    timer: Option<Timer>,
    deadline_ns: u64,
    before: u32,
    behind: u32,
}

/// Armed timers.
#[derive(Debug)]
pub struct Timers {
    /// By [`Timer::place`].
    places: Box<[Place]>,
    queues: [Queue; 4],
    /// The earliest deadline of all: what a step without an expired timer looks at.
    due_ns: u64,
}

impl Timers {
    /// Room for timers with places below `places`, all allocated now.
    pub fn new(places: usize) -> Self {
        let place = Place {
            timer: None,
            deadline_ns: 0,
            before: NIL,
            behind: NIL,
        };
        let queue = Queue {
            first: NIL,
            last: NIL,
            due_ns: u64::MAX,
        };
        Self {
            places: vec![place; places].into_boxed_slice(),
            queues: [queue; 4],
            due_ns: u64::MAX,
        }
    }

    /// When the next timer expires; never, if none is armed.
    #[inline]
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Arms a timer; one that is armed already gets the new deadline, which is not before that of any other of its kind.
    pub fn arm(&mut self, timer: Timer, deadline_ns: u64) {
        self.disarm(timer);
        let at = timer.place();
        let queue = &mut self.queues[kind(timer)];
        let last = core::mem::replace(&mut queue.last, at as u32);
        if last == NIL {
            queue.first = at as u32;
            queue.due_ns = deadline_ns;
            self.due_ns = self.due_ns.min(deadline_ns);
        } else {
            let last = &mut self.places[last as usize];
            assert!(
                last.deadline_ns <= deadline_ns,
                "time does not go back, and all of a kind run for the same time"
            );
            last.behind = at as u32;
        }
        let place = &mut self.places[at];
        assert!(place.timer.is_none(), "an epoch has one timer at a time");
        *place = Place {
            timer: Some(timer),
            deadline_ns,
            before: last,
            behind: NIL,
        };
    }

    /// Disarms a timer, if it is armed.
    pub fn disarm(&mut self, timer: Timer) {
        let at = timer.place();
        let place = &mut self.places[at];
        if place.timer != Some(timer) {
            return;
        }
        place.timer = None;
        let Place { before, behind, .. } = *place;
        let queue = &mut self.queues[kind(timer)];
        match self.places.get_mut(before as usize) {
            Some(before) => before.behind = behind,
            None => queue.first = behind,
        }
        match self.places.get_mut(behind as usize) {
            Some(behind) => behind.before = before,
            None => queue.last = before,
        }
        let first = self.places.get(queue.first as usize);
        queue.due_ns = first.map_or(u64::MAX, |first| first.deadline_ns);
        let due_ns = self.queues.iter().map(|queue| queue.due_ns).min();
        self.due_ns = due_ns.expect("there are kinds of timers");
    }

    /// The timer of an epoch that is armed, and its deadline.
    pub fn of_epoch(&self, epoch: Epoch) -> Option<(Timer, u64)> {
        let place = self.places.get(Timer::Fence(epoch).place())?;
        let steps = [Timer::Fence, Timer::Invalidate, Timer::Final];
        let timer = place.timer?;
        steps
            .map(|step| step(epoch))
            .contains(&timer)
            .then_some((timer, place.deadline_ns))
    }

    /// A timer whose deadline has come, disarmed; the earliest first.
    pub fn expired(&mut self, now_ns: u64) -> Option<Timer> {
        let earliest = self.queues.iter().min_by_key(|queue| queue.due_ns)?;
        if now_ns < earliest.due_ns {
            return None;
        }
        let first = self.places.get(earliest.first as usize)?;
        let timer = first.timer.expect("what is queued is armed");
        self.disarm(timer);
        Some(timer)
    }
}

const fn kind(timer: Timer) -> usize {
    match timer {
        Timer::FlushInterval => 0,
        Timer::Fence(_) => 1,
        Timer::Invalidate(_) => 2,
        Timer::Final(_) => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_expire_in_the_order_of_their_deadlines_and_once() {
        let mut timers = Timers::new(8);
        timers.arm(Timer::Fence(Epoch(2)), 10);
        timers.arm(Timer::Fence(Epoch(1)), 30);
        timers.arm(Timer::Final(Epoch(3)), 50);
        timers.arm(Timer::FlushInterval, 20);
        assert_eq!(
            timers.of_epoch(Epoch(3)),
            Some((Timer::Final(Epoch(3)), 50))
        );
        assert_eq!(timers.of_epoch(Epoch(4)), None);
        assert_eq!(timers.due_ns(), 10);
        assert_eq!(timers.expired(9), None);
        assert_eq!(timers.expired(40), Some(Timer::Fence(Epoch(2))));
        assert_eq!(timers.of_epoch(Epoch(2)), None);
        assert_eq!(timers.due_ns(), 20);
        assert_eq!(timers.expired(40), Some(Timer::FlushInterval));
        assert_eq!(timers.due_ns(), 30);
        timers.disarm(Timer::Fence(Epoch(1)));
        assert_eq!(timers.due_ns(), 50);
        assert_eq!(timers.expired(u64::MAX), Some(Timer::Final(Epoch(3))));
        assert_eq!(timers.due_ns(), u64::MAX);
        assert_eq!(timers.expired(u64::MAX), None);
    }

    #[test]
    fn one_in_the_middle_is_disarmed_and_one_armed_again_goes_to_the_end() {
        let mut timers = Timers::new(8);
        for epoch in 0..4 {
            timers.arm(Timer::Fence(Epoch(epoch)), 10 + epoch);
        }
        timers.disarm(Timer::Fence(Epoch(1)));
        timers.disarm(Timer::Invalidate(Epoch(2)));
        timers.arm(Timer::Fence(Epoch(0)), 20);
        timers.disarm(Timer::Fence(Epoch(3)));
        let order: Vec<_> = core::iter::from_fn(|| timers.expired(30)).collect();
        assert_eq!(order, [2, 0].map(|epoch| Timer::Fence(Epoch(epoch))));
        timers.arm(Timer::Fence(Epoch(1)), 40);
        assert_eq!(timers.expired(40), Some(Timer::Fence(Epoch(1))));
    }

    #[test]
    fn b26_a_clock_that_goes_back_expires_nothing() {
        let mut timers = Timers::new(1);
        timers.arm(Timer::FlushInterval, 100);
        assert_eq!(timers.expired(50), None);
        assert_eq!(timers.expired(0), None);
        assert_eq!(timers.expired(100), Some(Timer::FlushInterval));
    }
}
