//! Application code that runs on an lcore.

use crate::client::ClientSide;
use crate::engine::Context;
use crate::event::Event;

/// A service as an lcore keeps it: the one place where calls are dynamic, since application code is of many types.
pub type BoxedService = Box<dyn Service>;

/// Any of them, for its calls.
pub(crate) type AnyService = dyn Service;

/// What runs in a context.
pub(crate) enum Code {
    /// An application's service. It is dropped on its lcore.
    Service(BoxedService),
    /// The side of a client. It is shut on its lcore, and its memory is freed off it.
    Client(Box<ClientSide>),
}

impl Code {
    /// For its calls.
    pub fn as_mut(&mut self) -> &mut AnyService {
        match self {
            Self::Service(service) => service.as_mut(),
            Self::Client(side) => side.as_mut(),
        }
    }
}

/// What a service found to do in a poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Something: poll again at the next step.
    Busy,
    /// Nothing: poll again at the next step.
    Idle,
    /// Nothing until an event comes: not polled again before that. A service that only reacts costs nothing while idle.
    Wait,
}

/// Application code of one context. It runs on the context's lcore, inside the poll step, so it must not block.
///
/// A panic in it is caught: its context is reclaimed, everything else goes on. That needs `panic = "unwind"`.
///
/// It is dropped on the lcore too, in the step in which its context ends. What its destructor does there, everybody waits for: a service with much memory
/// of its own, whose freeing may enter the kernel, hands it to another thread.
///
/// ```
/// use keyfence::{Context, Event, Service, Work};
///
/// /// Answers each message with one of its own.
/// struct Echo;
///
/// impl Service for Echo {
///     fn poll(&mut self, _cx: &mut Context<'_>) -> Work {
///         Work::Wait
///     }
///
///     fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
///         if let Event::Message(message) = event {
///             let mut bytes = [0; 8];
///             if message.read_at(0, &mut bytes) {
///                 // A full queue is normal; a real service would keep the answer for `Event::Writable`.
///                 let _ = cx.send(message.from(), &bytes, 0);
///             }
///         }
///     }
/// }
/// ```
pub trait Service: Send {
    /// Called each step, unless the last call returned [`Work::Wait`] and no event came since.
    fn poll(&mut self, cx: &mut Context<'_>) -> Work;

    /// Called for each event of the context, before `poll`.
    fn on_event(&mut self, cx: &mut Context<'_>, event: Event);

    /// Asked before each event. While it is false events stay with the context: messages keep their senders' credits, and peers' grants
    /// are refused when too many wait. A context that lets more pile up than its limits allow is reclaimed.
    fn takes_events(&mut self) -> bool {
        true
    }
}
