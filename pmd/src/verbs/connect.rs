//! Connecting through the connection manager. Nothing here waits: each step's end is an event, and `poll_event` takes the next step.
//!
//! The asking side resolves address and route, asks, and at the answer moves its queue pair to ready and tells the peer. The answering side moves
//! its queue pair to ready before it answers. Ids carry no queue pair: ours belong to our own context.
//!
//! Private data is padded with zeros on the wire, so its first byte says how many of the others mean something. A request has room for 56 bytes
//! in all; one that carries 56 has no such byte, and says so in a bit of its own.

use std::net::{SocketAddr, ToSocketAddrs};

use keyfence_mempool::sync::Ordering;

use super::books::{Books, Request};
use super::config::MAX_PRIVATE_BYTES;
use super::device::Shared;
use super::error::system;
use super::qp::{QpRecord, QpState};
use super::sys::{
    CmEvent, CmEventKind, CmId, ConnectParameters, QpState as State, wait_for_accesses,
};
use crate::device::ControlEvent;
use crate::error::{ControlError, within};
use crate::ids::{QpId, RequestId};

/// Connection requests that a device holds unanswered.
const MAX_REQUESTS: usize = 1024;

impl Shared {
    pub(crate) fn listen(&self, address: &str) -> Result<(), ControlError> {
        let parsed = parse(address)?;
        let mut books = self.books();
        let taken = || ControlError::AddressInUse(address.to_owned());
        if books.listeners.contains_key(address) {
            return Err(taken());
        }
        let id = CmId::create(&books.channel);
        let id = id.map_err(|error| system("rdma_create_id", &error))?;
        let listening = id.listen(&parsed, MAX_REQUESTS as i32);
        listening.map_err(|error| match error.raw_os_error() {
            Some(libc::EADDRINUSE) => taken(),
            Some(libc::EADDRNOTAVAIL | libc::ENODEV) => bad_address(address),
            _ => system("rdma_listen", &error),
        })?;
        books.listeners.insert(address.to_owned(), id);
        Ok(())
    }

    pub(crate) fn start_connect(
        &self,
        qp: QpId,
        address: &str,
        private: &[u8],
    ) -> Result<(), ControlError> {
        let private = pack(private)?;
        self.books().unconnected(qp)?;
        // A name may take the resolver's time.
        let parsed = parse(address)?;
        let mut books = self.books();
        let id = CmId::create(&books.channel);
        let id = id.map_err(|error| system("rdma_create_id", &error))?;
        let record = books.unconnected(qp)?;
        let class = id.set_traffic_class(self.config.traffic_class);
        class.map_err(|error| system("rdma_set_option", &error))?;
        let timeout_ms = self.config.resolve_timeout_ms as i32;
        let resolving = id.resolve_address(&parsed, timeout_ms);
        resolving.map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV | libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EADDRNOTAVAIL) => {
                ControlError::Unreachable(address.to_owned())
            }
            _ => system("rdma_resolve_addr", &error),
        })?;
        record.state = QpState::Connecting;
        record.private = private;
        record.id = Some(id);
        Ok(())
    }

    pub(crate) fn accept(
        &self,
        request: RequestId,
        qp: QpId,
        private: &[u8],
    ) -> Result<(), ControlError> {
        let private = pack(private)?;
        let mut books = self.books();
        let unknown = ControlError::NoSuchRequest(request);
        if !books.requests.contains_key(&request) {
            return Err(unknown);
        }
        books.unconnected(qp)?;
        let Request {
            id,
            responded,
            initiated,
        } = books.requests.remove(&request).ok_or(unknown)?;
        let record = books.unconnected(qp)?;
        let with = ConnectParameters {
            responded: responded.min(self.limits.max_responded),
            initiated: initiated.min(self.limits.max_initiated),
            ..self.parameters(record)
        };
        let accepted = make_ready(&id, record, &with).and_then(|()| {
            let accepted = id.accept(&with, &private);
            accepted.map_err(|error| system("rdma_accept", &error))
        });
        if let Err(error) = accepted {
            // The queue pair may be half connected, which cannot be taken back; the peer is refused with the id.
            let _ = record.fail();
            return Err(error);
        }
        record.state = QpState::Accepting;
        record.id = Some(id);
        Ok(())
    }

    pub(crate) fn reject(&self, request: RequestId, private: &[u8]) -> Result<(), ControlError> {
        let private = pack(private)?;
        let taken = self.books().requests.remove(&request);
        let taken = taken.ok_or(ControlError::NoSuchRequest(request))?;
        let rejected = taken.id.reject(&private);
        rejected.map_err(|error| system("rdma_reject", &error))
    }

    pub(crate) fn poll_event(&self) -> Option<ControlEvent> {
        // Without the lock. One that fails proves nothing: what is held stays held, and the next call tries again.
        let served = self.objects.grace.serve(wait_for_accesses);
        let mut books = self.books();
        books.async_events.grace_failures += u64::from(served.is_err());
        let books = &mut *books;
        self.take_async(books);
        loop {
            if let Some(event) = books.events.pop_front() {
                return Some(event);
            }
            let event = books.channel.next_event()?;
            self.advance(books, event);
        }
    }

    /// Takes the step that an event of the connection manager asks for.
    fn advance(&self, books: &mut Books, event: CmEvent) {
        let CmEvent { id, kind, private } = event;
        if let CmEventKind::Request {
            id: asking,
            responded,
            initiated,
            full,
        } = kind
        {
            let request = Request {
                id: asking,
                responded,
                initiated,
            };
            let private = match full {
                true => private
                    .get(..MAX_PRIVATE_BYTES)
                    .map_or(Vec::new(), <[u8]>::to_vec),
                false => unpack(&private),
            };
            return self.requested(books, id, request, private);
        }
        let Some((qp, record)) = books.qp_of_id(id) else {
            return;
        };
        if !record.state.is_waiting() {
            // A peer that has gone is not told by the connection manager: its keys' owner finds out by its own requests.
            return;
        }
        if !matches!(record.state_name(), "connecting" | "being accepted") {
            // In error or released: it waits for nothing any more.
            return leave_alone(record, &kind);
        }
        let stepped = match kind {
            CmEventKind::AddressResolved => self.address_resolved(record),
            CmEventKind::RouteResolved => self.route_resolved(record),
            CmEventKind::Response => self.answered(record),
            CmEventKind::Established => Ok(true),
            CmEventKind::Failed { by_peer } => Err(by_peer),
            CmEventKind::Request { .. } | CmEventKind::Other => Ok(false),
        };
        let accepting = record.state == QpState::Accepting;
        let event = match stepped {
            Ok(false) => return,
            Ok(true) => {
                record.state = QpState::Connected;
                record.flags.connected.store(true, Ordering::Release);
                let private = if accepting {
                    Vec::new()
                } else {
                    unpack(&private)
                };
                ControlEvent::Connected { qp, private }
            }
            Err(by_peer) => {
                give_up(record);
                let private = if by_peer {
                    unpack(&private)
                } else {
                    Vec::new()
                };
                ControlEvent::Rejected { qp, private }
            }
        };
        books.events.push_back(event);
    }

    fn requested(&self, books: &mut Books, listener: usize, request: Request, private: Vec<u8>) {
        let mut listeners = books.listeners.iter();
        let listener = listeners.find(|(_, id)| id.name() == listener);
        let here = request.id.adapter() == Some((self.adapter.clone(), self.config.port));
        // Refused with the id: through another adapter, to nobody, or one too many.
        let Some((address, _)) = listener.filter(|_| here) else {
            return;
        };
        if books.requests.len() >= MAX_REQUESTS {
            return;
        }
        let number = RequestId(books.next_request);
        books.next_request += 1;
        books.events.push_back(ControlEvent::ConnectRequest {
            request: number,
            address: address.clone(),
            private,
        });
        books.requests.insert(number, request);
    }

    /// The address belongs to an adapter, which must be ours.
    fn address_resolved(&self, record: &mut QpRecord) -> Result<bool, bool> {
        let id = record.id.as_ref().ok_or(false)?;
        if id.adapter() != Some((self.adapter.clone(), self.config.port)) {
            return Err(false);
        }
        let timeout_ms = self.config.resolve_timeout_ms as i32;
        let resolving = id.resolve_route(timeout_ms);
        resolving.map(|()| false).map_err(|_| false)
    }

    fn route_resolved(&self, record: &mut QpRecord) -> Result<bool, bool> {
        let id = record.id.as_ref().ok_or(false)?;
        let full = record.private.len() > MAX_PRIVATE_BYTES;
        let with = ConnectParameters {
            full,
            ..self.parameters(record)
        };
        let asked = id.connect(&with, &record.private[usize::from(full)..]);
        asked.map(|()| false).map_err(|_| false)
    }

    /// The peer has accepted: ready, and tell it.
    fn answered(&self, record: &mut QpRecord) -> Result<bool, bool> {
        let id = record.id.as_ref().ok_or(false)?;
        let with = self.parameters(record);
        let ready = make_ready(id, record, &with);
        if ready.is_err() || id.establish().is_err() {
            // Half connected, which cannot be taken back.
            let _ = record.fail();
            return Err(false);
        }
        Ok(true)
    }

    fn parameters(&self, record: &QpRecord) -> ConnectParameters {
        let config = &self.config;
        ConnectParameters {
            qp_number: record.qp.number(),
            full: false,
            responded: self.limits.max_responded,
            initiated: self.limits.max_initiated,
            retries: config.retry_count,
            rnr_retries: config.rnr_retry_count,
            min_rnr_timer: config.min_rnr_timer,
            ack_timeout: config.ack_timeout_exponent,
            mtu: config.mtu_code(),
            gid_index: config.gid_index,
            access: self.remote_access(),
        }
    }
}

/// A queue pair that ended while it connected. A peer that has accepted gets its connection, to nobody: a refusal now would tell it that
/// its queue pair, which is ready, can be used for another.
fn leave_alone(record: &mut QpRecord, kind: &CmEventKind) {
    let connected = match (kind, &record.id) {
        (CmEventKind::Response, Some(id)) => id.establish().is_ok(),
        _ => false,
    };
    if connected {
        record.state = QpState::Connected;
    } else if record.state == QpState::Connecting {
        record.id = None;
        record.state = QpState::Unconnected;
    }
}

/// The connection will not come about. One that has not left its first state can try again.
fn give_up(record: &mut QpRecord) {
    record.id = None;
    if record.state == QpState::Accepting {
        // It was ready for this peer, and cannot be for another.
        let _ = record.fail();
    }
    record.state = QpState::Unconnected;
}

fn make_ready(id: &CmId, record: &QpRecord, with: &ConnectParameters) -> Result<(), ControlError> {
    for state in [
        State::Initialised,
        State::ReadyToReceive,
        State::ReadyToSend,
    ] {
        let moved = id.move_qp(&record.qp, state, with);
        moved.map_err(|error| system("ibv_modify_qp", &error))?;
    }
    Ok(())
}

/// Private data with its length in front.
fn pack(private: &[u8]) -> Result<Vec<u8>, ControlError> {
    let (len, most) = (private.len() as u64, MAX_PRIVATE_BYTES as u64);
    within("private data bytes", len, 0, most)?;
    let mut packed = vec![private.len() as u8];
    packed.extend_from_slice(private);
    Ok(packed)
}

/// What a peer's private data means; nothing if it is not of this form.
fn unpack(packed: &[u8]) -> Vec<u8> {
    let Some((len, rest)) = packed.split_first() else {
        return Vec::new();
    };
    let private = rest.get(..usize::from(*len));
    private.map_or(Vec::new(), <[u8]>::to_vec)
}

fn bad_address(address: &str) -> ControlError {
    ControlError::BadAddress {
        address: address.to_owned(),
        allowed: "HOST:PORT or rdma:HOST:PORT, of an address that an RDMA adapter has",
    }
}

/// `HOST:PORT`, also with the scheme of configurations before it.
fn parse(address: &str) -> Result<SocketAddr, ControlError> {
    let place = address.strip_prefix("rdma:").unwrap_or(address);
    let host = place.rsplit_once(':').map(|(host, _)| host);
    if host.is_none_or(|host| host.is_empty() || host.contains('\0')) {
        return Err(bad_address(address));
    }
    let mut found = place.to_socket_addrs();
    let first = found.as_mut().ok().and_then(Iterator::next);
    first.ok_or_else(|| bad_address(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_keeps_its_length_through_padding() {
        for len in [0, 1, MAX_PRIVATE_BYTES] {
            let private: Vec<u8> = (0..len as u8).collect();
            let mut packed = pack(&private).unwrap();
            packed.resize(196, 0);
            assert_eq!(unpack(&packed), private);
        }
        assert!(pack(&[0; MAX_PRIVATE_BYTES + 1]).is_err());
        // A foreign program's, or none at all.
        assert_eq!(unpack(&[200, 1, 2]), []);
        assert_eq!(unpack(&[]), []);
    }

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for bad in ["", "nonsense", "\0:", "local", "rdma:", ":4791", "a:b:c"] {
            assert!(
                matches!(parse(bad), Err(ControlError::BadAddress { .. })),
                "{bad:?}"
            );
        }
        assert_eq!(parse("10.9.9.1:7471").unwrap().port(), 7471);
        assert_eq!(parse("rdma:10.9.9.1:7471"), parse("10.9.9.1:7471"));
        assert!(parse("[fe80::1]:7471").unwrap().is_ipv6());
    }
}
