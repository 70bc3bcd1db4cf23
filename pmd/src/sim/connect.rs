//! Connecting: a question, an answer, and the moment at which each side stands. Every step takes its time.

use super::config::MAX_PRIVATE_BYTES;
use super::faults::SimFault;
use super::qp::{Phase, QpRef};
use super::state::{Happening, State};
use crate::device::ControlEvent;
use crate::error::{ControlError, within};
use crate::ids::RequestId;

/// Connection requests that an adapter holds unanswered.
const MAX_REQUESTS: usize = 1024;

/// The addresses that a simulated adapter understands.
const ALLOWED: &str = "local:NAME, the name 1 to 64 printable characters";

/// A peer's wish to connect.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) from: QpRef,
    pub(super) attempt: u64,
    pub(super) address: String,
}

/// A step of connecting that is on its way.
#[derive(Debug)]
pub(super) enum ConnectStep {
    /// The question comes to who listens.
    Ask { request: Request, private: Vec<u8> },
    /// The listener's queue pair answers.
    Yes {
        request: Request,
        by: QpRef,
        private: Vec<u8>,
    },
    /// Nobody answers, or with no.
    No { request: Request, private: Vec<u8> },
    /// The accepting side hears that it stands.
    Stand { at: QpRef },
}

impl ConnectStep {
    /// The queue pair that it is about.
    pub(super) fn names(&self) -> QpRef {
        match self {
            Self::Ask { request, .. } | Self::Yes { request, .. } | Self::No { request, .. } => {
                request.from
            }
            Self::Stand { at } => *at,
        }
    }
}

impl State {
    pub(super) fn listen(&mut self, adapter: u32, address: &str) -> Result<(), ControlError> {
        let name = name_of(address)?;
        if self.listeners.contains_key(name) {
            return Err(ControlError::AddressInUse(address.to_owned()));
        }
        self.listeners.insert(name.to_owned(), adapter);
        Ok(())
    }

    /// Begins. That nobody listens is said at once or later, as it comes.
    pub(super) fn start_connect(
        &mut self,
        at: QpRef,
        address: &str,
        private: &[u8],
    ) -> Result<(), ControlError> {
        check_private(private)?;
        self.unconnected(at)?;
        let listens = self.listeners.contains_key(name_of(address)?);
        if !listens && self.random.coin() {
            return Err(ControlError::Unreachable(address.to_owned()));
        }
        let adapter = self.adapter(at.adapter);
        let attempt = adapter.next_request;
        adapter.next_request += 1;
        self.set_phase(at, Phase::Connecting(attempt));
        let request = Request {
            from: at,
            attempt,
            address: address.to_owned(),
        };
        let rate = self.faults.refused_connection_per_million;
        if self.random.strikes(rate) {
            self.fired.add(SimFault::RefusedConnection);
            self.answer_no(&request, Vec::new());
            return Ok(());
        }
        let private = private.to_vec();
        self.soon(ConnectStep::Ask { request, private });
        Ok(())
    }

    pub(super) fn accept_connection(
        &mut self,
        adapter: u32,
        request: RequestId,
        at: QpRef,
        private: &[u8],
    ) -> Result<(), ControlError> {
        check_private(private)?;
        if !self.adapter(adapter).requests.contains_key(&request) {
            return Err(ControlError::NoSuchRequest(request));
        }
        self.unconnected(at)?;
        let Some(asked) = self.adapter(adapter).requests.remove(&request) else {
            return Err(ControlError::NoSuchRequest(request));
        };
        let waits = self.qp(asked.from);
        let waits = waits.is_some_and(|qp| qp.waits_for(asked.attempt));
        // That the peer is gone may be known by now, or not yet.
        if !waits && self.random.coin() {
            return Err(ControlError::Unreachable(asked.address));
        }
        if let Some(qp) = self.qp_mut(at) {
            qp.phase = Phase::Accepting;
            qp.peer = Some(asked.from);
        }
        self.soon(ConnectStep::Yes {
            request: asked,
            by: at,
            private: private.to_vec(),
        });
        Ok(())
    }

    pub(super) fn reject_connection(
        &mut self,
        adapter: u32,
        request: RequestId,
        private: &[u8],
    ) -> Result<(), ControlError> {
        check_private(private)?;
        let asked = self.adapter(adapter).requests.remove(&request);
        let asked = asked.ok_or(ControlError::NoSuchRequest(request))?;
        self.answer_no(&asked, private.to_vec());
        Ok(())
    }

    pub(super) fn answer_no(&mut self, request: &Request, private: Vec<u8>) {
        let request = request.clone();
        self.soon(ConnectStep::No { request, private });
    }

    pub(super) fn connect_step(&mut self, step: ConnectStep) {
        match step {
            ConnectStep::Ask { request, private } => self.ask(request, private),
            ConnectStep::Yes {
                request,
                by,
                private,
            } => {
                if self.waits(&request) {
                    if let Some(qp) = self.qp_mut(request.from) {
                        qp.phase = Phase::Connected;
                        qp.peer = Some(by);
                    }
                    let qp = request.from.qp;
                    self.tell(request.from, ControlEvent::Connected { qp, private });
                }
                // If the peer is gone it still stands, connected to nobody.
                self.soon(ConnectStep::Stand { at: by });
            }
            ConnectStep::No { request, private } => {
                if self.waits(&request) {
                    self.set_phase(request.from, Phase::Unconnected);
                    let qp = request.from.qp;
                    // The next start is another one, even if this one came back as late.
                    let late = ("start_connect", u64::from(qp.0));
                    self.adapter(request.from.adapter).done_late.remove(&late);
                    self.tell(request.from, ControlEvent::Rejected { qp, private });
                }
            }
            ConnectStep::Stand { at } => self.stand(at),
        }
    }

    fn stand(&mut self, at: QpRef) {
        let Some(qp) = self.qp_mut(at) else {
            return;
        };
        if qp.in_error || qp.phase != Phase::Accepting {
            return;
        }
        qp.phase = Phase::Connected;
        let private = Vec::new();
        self.tell(at, ControlEvent::Connected { qp: at.qp, private });
    }

    fn ask(&mut self, request: Request, private: Vec<u8>) {
        let listener = name_of(&request.address).ok();
        let listener = listener.and_then(|name| self.listeners.get(name)).copied();
        let Some(listener) = listener else {
            return self.answer_no(&request, Vec::new());
        };
        let adapter = self.adapter(listener);
        if adapter.requests.len() >= MAX_REQUESTS {
            return self.answer_no(&request, Vec::new());
        }
        let number = RequestId(adapter.next_request);
        adapter.next_request += 1;
        adapter.events.push_back(ControlEvent::ConnectRequest {
            request: number,
            address: request.address.clone(),
            private,
        });
        adapter.requests.insert(number, request);
    }

    fn waits(&self, request: &Request) -> bool {
        let qp = self.qp(request.from);
        qp.is_some_and(|qp| qp.waits_for(request.attempt))
    }

    fn tell(&mut self, at: QpRef, event: ControlEvent) {
        self.adapter(at.adapter).events.push_back(event);
    }

    fn soon(&mut self, step: ConnectStep) {
        let mut at_ns = self.after(self.config.connect_ns);
        if let Some(ns) = self.sometimes(self.faults.slow_connection) {
            self.fired.add(SimFault::SlowConnection);
            at_ns += ns;
        }
        self.schedule(at_ns, Happening::Connect(step));
    }

    fn unconnected(&self, at: QpRef) -> Result<(), ControlError> {
        let qp = self.known_qp(at)?;
        if qp.phase == Phase::Unconnected && !qp.in_error {
            return Ok(());
        }
        Err(ControlError::WrongState {
            qp: at.qp,
            state: qp.state_name(),
            wanted: "unconnected",
        })
    }

    fn set_phase(&mut self, at: QpRef, phase: Phase) {
        if let Some(qp) = self.qp_mut(at) {
            qp.phase = phase;
        }
    }
}

fn check_private(private: &[u8]) -> Result<(), ControlError> {
    let limit = MAX_PRIVATE_BYTES as u64;
    within("private data bytes", private.len() as u64, 0, limit)
}

fn name_of(address: &str) -> Result<&str, ControlError> {
    let name = address.strip_prefix("local:").unwrap_or("");
    let legal = (1..=64).contains(&name.chars().count()) && !name.contains(char::is_control);
    if legal {
        return Ok(name);
    }
    Err(ControlError::BadAddress {
        address: address.to_owned(),
        allowed: ALLOWED,
    })
}
