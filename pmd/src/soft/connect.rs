//! Connecting: a start on one side, an answer on the other, an event for each. The two devices' locks are never held together.

use std::sync::Arc;

use super::books::{MAX_REQUESTS, QpState, Request};
use super::config::MAX_PRIVATE_BYTES;
use super::device::Shared;
use super::link::{Link, Side};
use crate::device::ControlEvent;
use crate::error::{ControlError, within};
use crate::ids::{QpId, RequestId};

impl Shared {
    pub(crate) fn start_connect(
        this: &Arc<Self>,
        qp: QpId,
        address: &str,
        private: &[u8],
    ) -> Result<(), ControlError> {
        check_private(private)?;
        this.books().unconnected(qp)?;
        let listener = this.fabric.find(address)?;
        let config = &this.config;
        let link = Link::map(config.slots as usize, config.chunk_bytes).map_err(|error| {
            ControlError::System {
                call: "mapping a queue pair's segment",
                source_text: error.to_string(),
            }
        })?;
        let attempt = {
            let mut books = this.books();
            let attempt = books.next_request;
            books.next_request += 1;
            books.unconnected(qp)?.state = QpState::Connecting(attempt);
            attempt
        };
        let request = Request {
            from: Arc::downgrade(this),
            qp,
            attempt,
            link: Arc::new(link),
            address: address.to_owned(),
        };
        let asked = listener.ask(request, private);
        if asked.is_err() {
            this.stop_connecting(qp, attempt);
        }
        asked
    }

    pub(crate) fn accept(
        &self,
        request: RequestId,
        qp: QpId,
        private: &[u8],
    ) -> Result<(), ControlError> {
        check_private(private)?;
        let request = {
            let mut books = self.books();
            if !books.requests.contains_key(&request) {
                return Err(ControlError::NoSuchRequest(request));
            }
            books.unconnected(qp)?.state = QpState::Accepting;
            books.requests.remove(&request).expect("just seen")
        };
        let peer = request.from.upgrade();
        if peer.is_some_and(|peer| peer.accepted(&request, private)) {
            return self.finish_accept(&request, qp);
        }
        if let Ok(record) = self.books().qp(qp) {
            record.state = QpState::Unconnected;
        }
        Err(ControlError::Unreachable(request.address))
    }

    /// The peer's side stands. Ours may have come to its end meanwhile: then the peer finds it in error.
    fn finish_accept(&self, request: &Request, qp: QpId) -> Result<(), ControlError> {
        let link = (&request.link, Side::Acceptor);
        // Made and freed without the lock.
        let end = Box::new(link.0.end(link.1));
        let returned;
        let mut books = self.books();
        if let Err(over) = books.accepting(qp) {
            request.link.mark_error(Side::Acceptor);
            return Err(over);
        }
        returned = books.connect(qp, link, end);
        let private = Vec::new();
        self.push_event(ControlEvent::Connected { qp, private });
        drop(books);
        drop(returned);
        Ok(())
    }

    pub(crate) fn reject(&self, request: RequestId, private: &[u8]) -> Result<(), ControlError> {
        check_private(private)?;
        let answered = self.books().requests.remove(&request);
        let answered = answered.ok_or(ControlError::NoSuchRequest(request))?;
        if let Some(peer) = answered.from.upgrade() {
            peer.rejected(answered.qp, answered.attempt, private);
        }
        Ok(())
    }

    /// The peer refuses what `qp` asked, if it still waits for that.
    pub(crate) fn rejected(&self, qp: QpId, attempt: u64, private: &[u8]) {
        if self.stop_connecting(qp, attempt) {
            let private = private.to_vec();
            self.push_event(ControlEvent::Rejected { qp, private });
        }
    }

    /// Takes a peer's wish to connect.
    fn ask(&self, request: Request, private: &[u8]) -> Result<(), ControlError> {
        let mut books = self.books();
        if books.closed {
            return Err(ControlError::Unreachable(request.address));
        }
        if books.requests.len() >= MAX_REQUESTS {
            return Err(ControlError::Exhausted {
                what: "unanswered connection requests at the peer",
                limit: MAX_REQUESTS as u64,
            });
        }
        let number = RequestId(books.next_request);
        books.next_request += 1;
        let event = ControlEvent::ConnectRequest {
            request: number,
            address: request.address.clone(),
            private: private.to_vec(),
        };
        books.requests.insert(number, request);
        self.push_event(event);
        Ok(())
    }

    /// The peer accepts. Whether the queue pair still waits for that.
    fn accepted(&self, request: &Request, private: &[u8]) -> bool {
        let link = (&request.link, Side::Connector);
        // Made and freed without the lock.
        let end = Box::new(link.0.end(link.1));
        let returned;
        let mut books = self.books();
        let qp = books.qp(request.qp);
        let waits = qp.is_ok_and(|record| record.waits_for(request.attempt));
        if !waits || books.closed {
            return false;
        }
        returned = books.connect(request.qp, link, end);
        let (qp, private) = (request.qp, private.to_vec());
        self.push_event(ControlEvent::Connected { qp, private });
        drop(books);
        drop(returned);
        true
    }

    fn stop_connecting(&self, qp: QpId, attempt: u64) -> bool {
        let mut books = self.books();
        match books.qp(qp) {
            Ok(record) if record.waits_for(attempt) => {
                record.state = QpState::Unconnected;
                true
            }
            _ => false,
        }
    }
}

fn check_private(private: &[u8]) -> Result<(), ControlError> {
    let limit = MAX_PRIVATE_BYTES as u64;
    within("private data bytes", private.len() as u64, 0, limit)
}
