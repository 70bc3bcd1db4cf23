//! Field case B08, for any device: one context's engine posts dead keys in a loop, and another context on the same lane loses and doubles nothing.

use keyfence::ids::RemoteContext;
use keyfence::pmd::Device;
use keyfence::{EngineEvent, Event, Import, Local, OpDone, Status};

use crate::pair::offender::{Books, OPENED, Offender};
use crate::pair::scene::{completions, grant_with, lookup};
use crate::pair::{Pair, Puppet, Slot};

/// A context that has done nothing wrong: it says numbers, and reads, or writes what may be written twice. (Not both: a read with a write behind it is
/// `Indeterminate`.)
struct Bystander {
    reads: bool,
    sender: Puppet,
    receiver: Puppet,
    to: RemoteContext,
    import: Import,
    next: Slot<u64>,
    heard: Vec<u64>,
    done: Vec<OpDone>,
}

impl Bystander {
    fn new<D: Device>(pair: &mut Pair<D>, reads: bool) -> Self {
        let receiver = pair.right.puppet(0, "receiver");
        let sender = pair.left.puppet(0, "sender");
        pair.steps(10);
        let holder = lookup(pair, &receiver, "sender");
        let import = grant_with(pair, &receiver, (&sender, holder), OPENED).import;
        let to = lookup(pair, &sender, "receiver");
        let next = Slot::new();
        next.set(0);
        Self {
            reads,
            sender,
            receiver,
            to,
            import,
            next,
            heard: Vec::new(),
            done: Vec::new(),
        }
    }

    /// What there is room for, each with the next number.
    fn act(&self) {
        let (to, import, next) = (self.to, self.import, self.next.clone());
        let reads = self.reads;
        self.sender.act(move |cx| {
            let mut number = next.take().unwrap();
            let buf = cx.alloc(4096).unwrap();
            let local = [Local::prefix(&buf, 4096)];
            let said = match number % 3 {
                0 if reads => cx.read(&import, 0, &local, number),
                0 => cx.write_idempotent(&import, 0, &local, number),
                _ => cx.send(to, &number.to_le_bytes(), number),
            };
            number += u64::from(said.is_ok());
            next.set(number);
        });
    }

    fn listen(&mut self) {
        for event in self.receiver.events() {
            if let Event::Message(message) = event {
                let mut bytes = [0; 8];
                assert!(message.read_at(0, &mut bytes));
                self.heard.push(u64::from_le_bytes(bytes));
            }
        }
        self.done.extend(completions(&self.sender.events()));
    }

    /// All that it began has ended well, once, and every message came once, in order.
    fn has_lost_nothing(&mut self, breaks: usize) {
        let begun = self.next.take().unwrap();
        let bad = self.done.iter().find(|done| done.status != Status::Ok);
        assert_eq!(bad, None);
        let mut tokens: Vec<u64> = self.done.iter().map(|done| done.token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, (0..begun).collect::<Vec<_>>());
        let said: Vec<u64> = (0..begun).filter(|number| number % 3 != 0).collect();
        assert_eq!(self.heard, said);
        assert!(said.len() > breaks, "{} messages", said.len());
    }
}

/// Breaks the lane by `breaks` dead keys, one after the other, with a bystander beside them that `reads` or writes. Gives the longest repair, in ns of the pair's clock, which `step` moves.
pub fn b08_a_bystander_loses_and_doubles_nothing<D: Device>(
    pair: &mut Pair<D>,
    books: &Books<'_>,
    (reads, breaks): (bool, usize),
    mut step: impl FnMut(&mut Pair<D>),
) -> u64 {
    let mut bystander = Bystander::new(pair, reads);
    let offender = Offender::new(pair, books);
    let repaired = |pair: &Pair<D>| -> Vec<u64> {
        let took = |event: &EngineEvent| match event {
            EngineEvent::LaneRepaired { took_ns, .. } => Some(*took_ns),
            _ => None,
        };
        pair.left.events.iter().filter_map(took).collect()
    };
    for round in 0..breaks {
        offender.offend();
        for _ in 0..50_000 {
            bystander.act();
            step(pair);
            bystander.listen();
            offender.scene.holder.events();
            if repaired(pair).len() > round {
                break;
            }
        }
        assert_eq!(repaired(pair).len(), round + 1, "each dead key breaks it");
    }
    for _ in 0..2_000 {
        step(pair);
    }
    bystander.listen();
    bystander.has_lost_nothing(breaks);
    let down = |event: &EngineEvent| matches!(event, EngineEvent::PeerDown(_));
    assert!(!pair.left.events.iter().any(down));
    repaired(pair).into_iter().max().unwrap()
}
