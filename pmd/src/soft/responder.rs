//! The responder of a queue pair: executes the peer's requests in order and checks the key of every access, slice by slice.

use super::completions::Completions;
use super::datapath::VISIT_SLOTS;
use super::endpoint::Trouble;
use super::keys::Refused;
use super::link::End;
use super::memory::{Memory, Payload};
use super::outgoing::chunk_bytes;
use super::receive_queue::ReceiveQueue;
use super::stream::SLICE_BYTES;
use super::wire::{
    Answer, Malformed, PAYLOAD_WORDS, Refusal, Request, RequestOp, Response, SLOT_PAYLOAD_BYTES,
    pack, unpack,
};
use crate::completion::{CompletionKind, WcStatus};
use crate::ids::{PdId, QpId};
use crate::work::{ReceiveRequest, Rights};

/// How many slots ahead the reader asks for.
const PREFETCH_SLOTS: usize = 4;

/// The receiving half of a queue pair.
#[derive(Debug)]
pub(crate) struct Responder {
    pub(crate) receives: ReceiveQueue,
    scope: (QpId, PdId),
    max_operation_bytes: u64,
    /// The request of which a part is done.
    current: Option<Incoming>,
    /// Requests finished.
    number: u64,
}

/// A request being executed.
#[derive(Clone, Copy, Debug)]
struct Incoming {
    request: Request,
    moved: usize,
}

enum Step {
    Moved,
    /// Nothing there, or no receive, no room for an answer or a completion.
    Waiting,
}

/// Why a request is not executed.
enum Fault {
    /// Not what a correct peer writes: no answer.
    Malformed,
    Refuse(Refusal),
    /// The fault is the receive buffer's.
    Receive(WcStatus, Refusal),
}

impl Responder {
    pub(crate) fn new(scope: (QpId, PdId), receive_depth: u32, max_operation_bytes: u64) -> Self {
        Self {
            receives: ReceiveQueue::new(receive_depth),
            scope,
            max_operation_bytes,
            current: None,
            number: 0,
        }
    }

    /// Executes a bounded number of requests and slices.
    #[inline]
    pub(crate) fn visit(
        &mut self,
        memory: &mut Memory<'_>,
        end: &mut End,
        done: &mut Completions<'_>,
    ) -> Result<(), Trouble> {
        let mut idle = false;
        for _ in 0..VISIT_SLOTS {
            if memory.budget == 0 {
                break;
            }
            match self.step(memory, end, done) {
                Ok(Step::Moved) => {}
                Ok(Step::Waiting) => {
                    idle = true;
                    break;
                }
                Err(fault) => {
                    self.refuse(end, fault);
                    return Err(Trouble::Other);
                }
            }
        }
        end.requests_in.publish(idle);
        Ok(())
    }

    #[inline(always)]
    fn step(
        &mut self,
        memory: &mut Memory<'_>,
        end: &mut End,
        done: &mut Completions<'_>,
    ) -> Result<Step, Fault> {
        if let Some(incoming) = self.current {
            if incoming.request.op == RequestOp::Read {
                return self.give(memory, end, incoming);
            }
            let Some(slot) = end.requests_in.peek() else {
                return Ok(Step::Waiting);
            };
            let more = Request::decode(&slot)?;
            let expected = slice_len(&incoming);
            if more.op != RequestOp::More || more.len as usize != expected {
                return Err(Fault::Malformed);
            }
            return self.land(memory, end, done, (incoming, more.prompt));
        }
        let Some(slot) = end.requests_in.peek() else {
            return Ok(Step::Waiting);
        };
        end.requests_in.prefetch(PREFETCH_SLOTS);
        let request = Request::decode(&slot)?;
        if u64::from(request.len) > self.max_operation_bytes {
            return Err(Fault::Refuse(Refusal::Invalid));
        }
        let incoming = Incoming { request, moved: 0 };
        match request.op {
            RequestOp::Write | RequestOp::Send => {
                self.land(memory, end, done, (incoming, request.prompt))
            }
            RequestOp::Read => self.give(memory, end, incoming),
            RequestOp::FetchAdd | RequestOp::CompareSwap => self.modify(memory, end, &request),
            RequestOp::More => Err(Fault::Malformed),
        }
    }

    /// One slice of a write or send. The last one of a message that takes a receive waits for one, and for room to report it.
    #[inline(always)]
    fn land(
        &mut self,
        memory: &mut Memory<'_>,
        end: &mut End,
        done: &mut Completions<'_>,
        (incoming, prompt): (Incoming, bool),
    ) -> Result<Step, Fault> {
        let Incoming { request, moved } = incoming;
        let whole = request.len as usize;
        let len = slice_len(&incoming);
        let is_last = moved + len == whole;
        let is_send = request.op == RequestOp::Send;
        let reports = is_last && (is_send || request.immediate.is_some());
        let mut receive = None;
        if is_send || reports {
            receive = self.receives.oldest();
            if receive.is_none() || reports && done.is_full() {
                return Ok(Step::Waiting);
            }
        }
        let in_chunk = chunk_bytes(whole, len);
        let in_slot;
        let payload = if in_chunk == 0 {
            in_slot = unpack(&request.payload);
            Payload::Slot(&in_slot)
        } else {
            Payload::Chunk(end.requests_in.chunk(len))
        };
        match receive {
            Some(receive) if is_send => {
                self.land_in_receive(memory, &receive, incoming, payload)?;
            }
            _ => self.land_in_memory(memory, incoming, payload)?,
        }
        memory.spend(len);
        end.requests_in.finish(in_chunk, prompt);
        self.current = (!is_last).then_some(Incoming {
            request,
            moved: moved + len,
        });
        if is_last {
            self.number += 1;
        }
        if reports {
            let kind = if is_send {
                CompletionKind::Receive
            } else {
                CompletionKind::ReceiveWriteImmediate
            };
            let received = (kind, request.len);
            self.receives
                .complete(self.scope.0, received, request.immediate, done);
        }
        Ok(Step::Moved)
    }

    #[inline(always)]
    fn land_in_memory(
        &self,
        memory: &mut Memory<'_>,
        incoming: Incoming,
        payload: Payload<'_>,
    ) -> Result<(), Fault> {
        let len = slice_len(&incoming);
        if len == 0 {
            return Ok(());
        }
        let Incoming { request, moved } = incoming;
        let range = rest(&request, moved);
        let target = memory.remote(request.rkey, self.scope, range, Rights::WRITE)?;
        let target = target.slice(0, len).expect("a slice of the checked range");
        payload.copy_to(0, target);
        Ok(())
    }

    fn land_in_receive(
        &self,
        memory: &mut Memory<'_>,
        receive: &ReceiveRequest,
        incoming: Incoming,
        payload: Payload<'_>,
    ) -> Result<(), Fault> {
        if incoming.request.len > receive.sge.len {
            return Err(Fault::Receive(WcStatus::LocalLength, Refusal::Invalid));
        }
        let list = (self.scope.1, core::slice::from_ref(&receive.sge));
        let len = slice_len(&incoming);
        let landed = memory.scatter(list, incoming.moved, len, payload);
        landed.map_err(|_| Fault::Receive(WcStatus::LocalProtection, Refusal::Failed))
    }

    /// One slice of a read.
    fn give(
        &mut self,
        memory: &mut Memory<'_>,
        end: &mut End,
        incoming: Incoming,
    ) -> Result<Step, Fault> {
        let Incoming { request, moved } = incoming;
        let whole = request.len as usize;
        let len = slice_len(&incoming);
        let in_chunk = chunk_bytes(whole, len);
        if !end.answers_out.make_room(in_chunk) {
            return Ok(Step::Waiting);
        }
        let mut in_slot = [0; SLOT_PAYLOAD_BYTES];
        if len > 0 {
            let range = rest(&request, moved);
            let source = memory.remote(request.rkey, self.scope, range, Rights::READ)?;
            let source = source.slice(0, len).expect("a slice of the checked range");
            if in_chunk == 0 {
                let read = source.read_into(&mut in_slot[..len]);
                read.expect("both have this length");
            } else {
                end.answers_out.chunk(len).write(0, source);
            }
        }
        memory.spend(len);
        let answer = Answer::Data { len: len as u32 };
        self.answer(end, answer, pack(&in_slot), in_chunk);
        let moved = moved + len;
        if moved == whole {
            end.requests_in.finish(0, request.prompt);
            self.number += 1;
            self.current = None;
        } else {
            self.current = Some(Incoming { request, moved });
        }
        Ok(Step::Moved)
    }

    fn modify(
        &mut self,
        memory: &mut Memory<'_>,
        end: &mut End,
        request: &Request,
    ) -> Result<Step, Fault> {
        if request.len != 8 {
            return Err(Fault::Malformed);
        }
        if !end.answers_out.make_room(0) {
            return Ok(Step::Waiting);
        }
        let target = memory.remote(request.rkey, self.scope, rest(request, 0), ATOMIC)?;
        let [first, second, ..] = request.payload;
        let former = if request.op == RequestOp::FetchAdd {
            target.fetch_add_u64(0, first)
        } else {
            target.compare_exchange_u64(0, first, second)
        };
        // Eight bytes were checked to be there, so it can only be misaligned.
        let value = former.map_err(|_| Fault::Refuse(Refusal::Invalid))?;
        self.answer(end, Answer::Former { value }, [0; PAYLOAD_WORDS], 0);
        end.requests_in.finish(0, request.prompt);
        self.number += 1;
        Ok(Step::Moved)
    }

    fn answer(
        &self,
        end: &mut End,
        answer: Answer,
        payload: [u64; PAYLOAD_WORDS],
        in_chunk: usize,
    ) {
        let response = Response {
            request: self.number,
            answer,
            payload,
        };
        end.answers_out.write(response.encode(), in_chunk);
    }

    /// Says why, after having said what was executed before. The queue pair goes to error.
    fn refuse(&mut self, end: &mut End, fault: Fault) {
        end.requests_in.publish(true);
        let refusal = match fault {
            Fault::Malformed => return,
            Fault::Refuse(refusal) => refusal,
            Fault::Receive(status, refusal) => {
                self.receives.fail(status);
                refusal
            }
        };
        self.answer(end, Answer::Refused(refusal), [0; PAYLOAD_WORDS], 0);
    }
}

impl From<Malformed> for Fault {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

impl From<Refused> for Fault {
    fn from(_: Refused) -> Self {
        Self::Refuse(Refusal::Access)
    }
}

const ATOMIC: Rights = Rights {
    read: false,
    write: false,
    atomic: true,
};

/// Bytes that the next slice of a request moves.
#[inline]
fn slice_len(incoming: &Incoming) -> usize {
    (incoming.request.len as usize - incoming.moved).min(SLICE_BYTES)
}

/// What is left of a request's range: all of it is checked before each slice. No sum overflows: the first check refuses ranges
/// that do.
#[inline]
fn rest(request: &Request, moved: usize) -> (u64, u64) {
    let address = request.address.wrapping_add(moved as u64);
    (address, u64::from(request.len) - moved as u64)
}
