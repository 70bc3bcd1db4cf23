//! Where a repair is.

/// What has happened to a link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// The queue pair that carries it broke.
    Broke,
    /// All completions of that one were taken, up to its flush or as long as draining may take.
    Drained,
    /// That one, or one before it, is destroyed.
    Destroyed,
    /// A new queue pair stands, admitted as the repair of this number.
    Admitted {
        /// The number.
        repair: u32,
    },
    /// That one broke, or was given up, before it carried the link.
    Withdrawn {
        /// Its number.
        repair: u32,
    },
    /// The other end has begun the repair.
    Begin {
        /// Its number.
        repair: u32,
        /// The number of the last message that it took.
        received: u32,
    },
    /// All that is live here was named to the other end.
    Said,
    /// The other end has named all that is live there.
    End {
        /// The repair's number.
        repair: u32,
    },
    /// What it named is in force here, and what it did not name is dead.
    Applied,
    /// The operations that the break cut off are judged.
    Judged,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Order {
    /// Move the link to the new lane, say `Begin`, and name what is live.
    TakeOver {
        /// The number of the repair.
        repair: u32,
    },
    /// The other end's queue pair is in error: what was flushed here can't be executed there any more (R2).
    Confirm,
    /// Judge the operations that were cut off.
    Judge {
        /// The number of the last message that the other end took.
        received: u32,
    },
    /// Put the other end's list in force.
    Apply,
    /// Post operations again.
    Resume,
}

/// What the other end said is no repair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    /// Of another repair, or said twice, or before it was begun: dropped.
    Stale,
}

/// The orders that an event gives: at most three.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Orders([Option<Order>; 3]);

impl Orders {
    fn add(&mut self, order: Order) {
        let free = self.0.iter_mut().find(|order| order.is_none());
        *free.expect("an event gives three orders at most") = Some(order);
    }

    /// In their order.
    pub fn iter(self) -> impl Iterator<Item = Order> {
        self.0.into_iter().flatten()
    }
}

/// A link whose queue pair broke.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Broken {
    /// Queue pairs that carried it and are not destroyed.
    alive: u8,
    /// Whether the last one of them is drained.
    drained: bool,
    /// The repair that a new queue pair was admitted for.
    admitted: Option<u32>,
    /// Whether it carries the link.
    taken_over: bool,
    /// What the other end took, once it has said it in this repair.
    theirs: Option<u32>,
    judged: bool,
    said: bool,
    listed: bool,
    applied: bool,
}

impl Broken {
    const FIRST: Self = Self {
        alive: 0,
        drained: false,
        admitted: None,
        taken_over: false,
        theirs: None,
        judged: false,
        said: false,
        listed: false,
        applied: false,
    };

    /// The queue pair that carries the link has broken, the first one or the one after it: all that was said on it is worth nothing.
    fn again(self) -> Self {
        Self {
            alive: self.alive + 1,
            judged: self.judged,
            ..Self::FIRST
        }
    }
}

/// The state of one link's repair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Repair {
    broken: Option<Broken>,
    number: u32,
}

impl Repair {
    /// Whether operations may be posted.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.broken.is_none()
    }

    /// The number of the last repair that took the link over; 0 if it never broke.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether the queue pair that carries it broke, and no other has taken it over yet.
    pub fn is_adrift(&self) -> bool {
        self.broken.is_some_and(|broken| !broken.taken_over)
    }

    /// Whether the other end is to begin this repair now.
    pub fn awaits_begin(&self, repair: u32) -> bool {
        let begins = |broken: Broken| broken.taken_over && broken.theirs.is_none();
        self.number == repair && self.broken.is_some_and(begins)
    }

    /// Whether the other end has begun the repair that is under way, or none is.
    pub fn has_begun_there(&self) -> bool {
        self.broken.is_none_or(|broken| broken.theirs.is_some())
    }

    /// Whether the other end is naming what is live there.
    pub fn is_listing(&self) -> bool {
        self.broken
            .is_some_and(|broken| broken.taken_over && broken.theirs.is_some() && !broken.listed)
    }

    /// Takes an event.
    ///
    /// # Errors
    /// [`Fault`] if the other end's word does not fit; nothing has changed then.
    ///
    /// # Panics
    /// If this end's engine tells what can't be: a queue pair that is destroyed before it broke.
    pub fn handle(&mut self, event: Event) -> Result<Orders, Fault> {
        let mut orders = Orders::default();
        match event {
            Event::Broke => {
                let before = self.broken.unwrap_or(Broken::FIRST);
                self.broken = Some(before.again());
            }
            Event::Drained => self.known().drained = true,
            Event::Destroyed => self.known().alive -= 1,
            Event::Admitted { repair } => self.known().admitted = Some(repair),
            Event::Withdrawn { repair } => {
                let admitted = &mut self.known().admitted;
                admitted.take_if(|admitted| *admitted == repair);
            }
            Event::Begin { repair, received } => {
                let broken = self.begun(repair)?;
                if broken.theirs.replace(received).is_some() {
                    return Err(Fault::Stale);
                }
                orders.add(Order::Confirm);
            }
            Event::Said => self.known().said = true,
            Event::End { repair } => {
                let broken = self.begun(repair)?;
                if broken.theirs.is_none() || core::mem::replace(&mut broken.listed, true) {
                    return Err(Fault::Stale);
                }
                orders.add(Order::Apply);
            }
            Event::Applied => self.known().applied = true,
            Event::Judged => self.known().judged = true,
        }
        self.go_on(event, &mut orders);
        Ok(orders)
    }

    fn known(&mut self) -> &mut Broken {
        self.broken.as_mut().expect("a link is repaired that broke")
    }

    /// The repair that is under way on the lane that carries the link, if it is that of this number.
    fn begun(&mut self, repair: u32) -> Result<&mut Broken, Fault> {
        let number = self.number;
        let broken = self.broken.as_mut().filter(|broken| broken.taken_over);
        broken.filter(|_| repair == number).ok_or(Fault::Stale)
    }

    fn go_on(&mut self, event: Event, orders: &mut Orders) {
        let Some(broken) = self.broken.as_mut() else {
            return;
        };
        if let (Some(repair), true, false) = (broken.admitted, broken.drained, broken.taken_over) {
            broken.taken_over = true;
            self.number = repair;
            orders.add(Order::TakeOver { repair });
            return;
        }
        let may_judge = matches!(event, Event::Begin { .. } | Event::Destroyed);
        if let (Some(received), 0, false) = (broken.theirs, broken.alive, broken.judged)
            && may_judge
        {
            orders.add(Order::Judge { received });
        }
        if broken.taken_over && broken.alive == 0 && broken.judged && broken.said && broken.applied
        {
            self.broken = None;
            orders.add(Order::Resume);
        }
    }
}
