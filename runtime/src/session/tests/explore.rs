//! A small world, explored whole: two honest engines with two lanes in one session, one of them made anew, and one in the next, and somebody between them who has all that was ever
//! said, and gives any of it to anybody in any order. Without the secret, the most that comes of it is what the two would have done anyway: an end admits a
//! lane only if the other end has the same request, the same reply, and said that very hello.

use std::collections::HashSet;

use super::{hello, known, names, secret};
use crate::session::admission::{Admission, Event, LaneNames, Order};
use crate::session::secret::Secret;
use crate::session::words::{Request, WORDS_BYTES};
use crate::wire::{Hello, Role};

type Mac = [u8; 16];

/// An end and what it has said. Two ends of one lane and side differ by the number of their request's answer.
#[derive(Clone, PartialEq, Eq, Hash)]
struct End {
    lane: usize,
    answer: u8,
    role: Role,
    admission: Admission,
    /// What was said with the connection.
    words: [u8; WORDS_BYTES],
    /// Its hello.
    hello: Option<Mac>,
    /// The hello that it was admitted for.
    admitted: Option<Mac>,
}

/// Ends in a fixed order; what was said is all theirs.
#[derive(Clone, PartialEq, Eq, Hash)]
struct World(Vec<End>);

/// What is given to somebody.
#[derive(Clone, Copy)]
enum Said<'a> {
    Words(&'a [u8; WORDS_BYTES]),
    /// A hello by its lane, its side and its MAC.
    Hello(usize, Role, Mac),
}

/// The lanes that the connecting engine asks for.
fn lanes() -> [LaneNames; 4] {
    let first = names(1, 0);
    let repaired = LaneNames { repair: 1, ..first };
    [first, repaired, names(1, 1), names(2, 0)]
}

/// How often the accepting engine can be made to answer one request, and all.
const ANSWERS: (u8, usize) = (2, 6);

fn said(order: Result<Order<'_>, crate::JoinRefusal>) -> [u8; WORDS_BYTES] {
    match order {
        Ok(Order::Say(words)) => words,
        other => panic!("{other:?}"),
    }
}

impl World {
    fn new(secret: &Secret) -> Self {
        let known = known(Role::Connecting, secret);
        let end = |(lane, names): (usize, &LaneNames)| {
            let mut admission = Admission::connecting(names, &known);
            let nonce = [lane as u8; 16];
            let words = said(admission.handle(Event::Ask { nonce }, &known));
            End {
                lane,
                answer: 0,
                role: Role::Connecting,
                admission,
                words,
                hello: None,
                admitted: None,
            }
        };
        Self(lanes().iter().enumerate().map(end).collect())
    }

    /// Each world that one delivery leads to.
    fn next(&self, secret: &Secret) -> Vec<Self> {
        let mut next = Vec::new();
        for end in &self.0 {
            if end.role == Role::Connecting {
                next.extend(self.answered(end, secret));
            }
            let hello = end.hello.map(|mac| Said::Hello(end.lane, end.role, mac));
            for at in 0..self.0.len() {
                next.extend(self.heard(at, Said::Words(&end.words), secret));
                next.extend(hello.and_then(|said| self.heard(at, said, secret)));
            }
        }
        next
    }

    /// The accepting engine takes a request, once or again.
    fn answered(&self, asker: &End, secret: &Secret) -> Option<Self> {
        let accepting = self.0.iter().filter(|end| end.role == Role::Accepting);
        let answer = accepting
            .clone()
            .filter(|end| end.lane == asker.lane)
            .count() as u8;
        if answer == ANSWERS.0 || accepting.count() == ANSWERS.1 {
            return None;
        }
        let asked = Request::read(&asker.words).unwrap();
        let mut admission = Admission::accepting(asked, lanes()[asker.lane].repair).unwrap();
        let known = known(Role::Accepting, secret);
        let qp = lanes()[asker.lane].qp + 100;
        let nonce = [128 + 16 * asker.lane as u8 + answer; 16];
        let words = said(admission.handle(Event::Answer { qp, nonce }, &known));
        let mut world = self.clone();
        let mut end = End {
            role: Role::Accepting,
            answer,
            admission,
            words,
            ..asker.clone()
        };
        (end.hello, end.admitted) = (None, None);
        end.greet(secret);
        world.0.push(end);
        let place = |end: &End| (end.role as u8, end.lane, end.answer);
        world.0.sort_by_key(place);
        Some(world)
    }

    /// An end is given what was said. `None` if it is none of its business, or refused: a refusal is final, so it leads nowhere that others don't.
    fn heard(&self, at: usize, said: Said<'_>, secret: &Secret) -> Option<Self> {
        let mut world = self.clone();
        let end = &mut world.0[at];
        let known = known(end.role, secret);
        match said {
            Said::Words(words) if end.role == Role::Connecting && end.hello.is_none() => {
                let heard = end.admission.handle(Event::Reply(words), &known);
                heard.ok()?;
                end.greet(secret);
            }
            Said::Hello(lane, role, mac) if end.admitted.is_none() => {
                let hello = Hello {
                    mac,
                    ..hello(role, &lanes()[lane])
                };
                let heard = end.admission.handle(Event::Hello(&hello), &known);
                heard.ok()?;
                end.admitted = Some(mac);
            }
            _ => return None,
        }
        Some(world)
    }

    /// R12: who is admitted was met. Returns how many ends are.
    fn judge(&self) -> usize {
        let admitted = || self.0.iter().filter(|end| end.admitted.is_some());
        for end in admitted() {
            let met = |other: &&End| {
                other.role != end.role
                    && other.lane == end.lane
                    && other.admission.said_alike(&end.admission)
                    && other.hello == end.admitted
            };
            assert_eq!(self.0.iter().filter(met).count(), 1);
            let twin = |other: &&End| (other.role, other.lane) == (end.role, end.lane);
            assert_eq!(admitted().filter(twin).count(), 1, "a lane admitted twice");
        }
        admitted().count()
    }
}

impl End {
    fn greet(&mut self, secret: &Secret) {
        let hello = Event::Greet(hello(self.role, &lanes()[self.lane]));
        match self.admission.handle(hello, &known(self.role, secret)) {
            Ok(Order::Hello(Hello { mac, .. })) => self.hello = Some(mac),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn r12_nothing_that_was_said_lets_anybody_in_who_was_not_met() {
    let secret = secret(5);
    let mut open = vec![World::new(&secret)];
    let mut seen: HashSet<World> = open.iter().cloned().collect();
    let mut most_admitted = 0;
    while let Some(world) = open.pop() {
        most_admitted = most_admitted.max(world.judge());
        for next in world.next(&secret) {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    assert_eq!(most_admitted, 2 * lanes().len(), "the honest way is there");
    assert!(seen.len() > 3_000, "{} worlds", seen.len());
}
