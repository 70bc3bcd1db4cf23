//! Answers to reads and atomics, and refusals: the other half of the requester.

use super::datapath::VISIT_SLOTS;
use super::endpoint::Trouble;
use super::link::End;
use super::memory::{Memory, Payload};
use super::outgoing::chunk_bytes;
use super::requester::Requester;
use super::send_queue::Phase;
use super::stream::{Inbound, SLICE_BYTES};
use super::wire::{Answer, Malformed, Refusal, Response, unpack};
use crate::completion::{CompletionKind, WcStatus};

impl Requester {
    /// Counts what is executed by now. An error if a request that failed on this side has its turn.
    #[inline]
    pub(crate) fn settle(&mut self) -> Result<(), Trouble> {
        match self.queue.settle(self.finished) {
            Some(status) => Err(Trouble::Request(status)),
            None => Ok(()),
        }
    }

    /// Takes a bounded number of answers. Whether none is left.
    #[inline]
    pub(crate) fn take_answers(
        &mut self,
        memory: &mut Memory<'_>,
        end: &mut End,
    ) -> Result<bool, Trouble> {
        for _ in 0..VISIT_SLOTS {
            if memory.budget == 0 {
                break;
            }
            let Some(slot) = end.answers_in.peek() else {
                end.answers_in.publish(true);
                return Ok(true);
            };
            let response = Response::decode(&slot)?;
            match response.answer {
                Answer::Data { len } => {
                    self.take_data(memory, &mut end.answers_in, &response, len as usize)?;
                }
                Answer::Former { value } => {
                    self.take_former(memory, &mut end.answers_in, &response, value)?;
                }
                Answer::Refused(refusal) => {
                    let finished = end.requests_out.finished()?;
                    return Err(self.take_refusal(finished, response.request, refusal));
                }
            }
        }
        end.answers_in.publish(true);
        Ok(false)
    }

    /// The queue's number of the request that the next answer must be for.
    fn asked(&mut self, request: u64) -> Result<u64, Malformed> {
        // What is executed is answered, and its place may hold a newer request.
        self.answering = self.answering.max(self.queue.executed);
        assert!(
            self.queue.sent - self.answering <= self.queue.depth,
            "an answer is looked for beyond the queue"
        );
        while self.answering < self.queue.sent {
            let flight = self.queue.flight(self.answering);
            if matches!(flight.kind, CompletionKind::Read | CompletionKind::Atomic) {
                let expected = flight.number == request;
                return if expected {
                    Ok(self.answering)
                } else {
                    Err(Malformed)
                };
            }
            self.answering += 1;
        }
        Err(Malformed)
    }

    fn take_data(
        &mut self,
        memory: &mut Memory<'_>,
        answers: &mut Inbound,
        response: &Response,
        len: usize,
    ) -> Result<(), Malformed> {
        let number = self.asked(response.request)?;
        let flight = *self.queue.flight(number);
        let whole = flight.bytes as usize;
        let expected = (whole - self.received).min(SLICE_BYTES);
        if flight.kind != CompletionKind::Read || len != expected {
            return Err(Malformed);
        }
        let in_chunk = chunk_bytes(whole, len);
        let in_slot = unpack(&response.payload);
        let payload = if in_chunk == 0 {
            Payload::Slot(&in_slot)
        } else {
            Payload::Chunk(answers.chunk(len))
        };
        self.land(memory, number, (self.received, len), payload);
        answers.finish(in_chunk, true);
        self.received += len;
        if self.received == whole {
            self.finish_answer(number);
        }
        Ok(())
    }

    fn take_former(
        &mut self,
        memory: &mut Memory<'_>,
        answers: &mut Inbound,
        response: &Response,
        value: u64,
    ) -> Result<(), Malformed> {
        let number = self.asked(response.request)?;
        if self.queue.flight(number).kind != CompletionKind::Atomic {
            return Err(Malformed);
        }
        let mut payload = response.payload;
        payload[0] = value;
        self.land(memory, number, (0, 8), Payload::Slot(&unpack(&payload)));
        answers.finish(0, true);
        self.finish_answer(number);
        Ok(())
    }

    /// Copies what came to where the request wants it, unless that memory is no longer ours: then the request fails in its turn, and the
    /// rest of its answer is thrown away.
    fn land(
        &mut self,
        memory: &mut Memory<'_>,
        number: u64,
        (skip, len): (usize, usize),
        payload: Payload<'_>,
    ) {
        memory.spend(len);
        if self.queue.flight(number).phase != Phase::Asked {
            return;
        }
        let sges = self.queue.work(number).sges;
        let list = (self.scope.1, sges.as_slice());
        if memory.scatter(list, skip, len, payload).is_err() {
            self.queue.flight(number).phase = Phase::Failed(WcStatus::LocalProtection);
            self.halted = true;
        }
    }

    fn finish_answer(&mut self, number: u64) {
        let flight = self.queue.flight(number);
        if flight.phase == Phase::Asked {
            flight.phase = Phase::Done;
        }
        self.answering = number + 1;
        self.received = 0;
    }

    /// The peer has executed everything before the request that it refused.
    fn take_refusal(&mut self, finished: u64, request: u64, refusal: Refusal) -> Trouble {
        self.finished = finished;
        if let Err(trouble) = self.settle() {
            return trouble;
        }
        if self.owed() == Some(request) {
            Trouble::Request(refusal.status())
        } else {
            Trouble::Other
        }
    }
}
