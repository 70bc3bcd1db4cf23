//! The bench's connections.

use super::Failure;
use super::bench::{Bench, End, Link};
use crate::device::{ControlEvent, Device, QpConfig};
use crate::ids::{LcoreId, QpId, RequestId};

impl<D: Device> Bench<D> {
    /// A configuration of modest size on this side.
    pub fn config(&self, end: End) -> QpConfig {
        let (pd, caps) = match end {
            End::A => (self.a.pd, self.a.device.caps()),
            End::B => (self.b.pd, self.b.device.caps()),
        };
        QpConfig {
            pd,
            lcore: LcoreId(0),
            send_depth: caps.max_send_depth.min(64),
            receive_depth: caps.max_receive_depth.min(64),
            max_sge: caps.max_sge,
            max_inline_bytes: caps.max_inline_bytes.min(64),
        }
    }

    /// Two connected queue pairs of modest size.
    pub fn link(&mut self) -> Result<Link, Failure> {
        let config = self.config(End::A);
        self.link_with(&config)
    }

    /// Two connected queue pairs of this size.
    pub fn link_with(&mut self, config: &QpConfig) -> Result<Link, Failure> {
        let link = Link {
            a: self.a.device.create_qp(config)?,
            b: self.b.device.create_qp(&QpConfig {
                pd: self.b.pd,
                ..*config
            })?,
        };
        self.a.device.start_connect(link.a, &self.address, &[])?;
        let (request, _) = self.connect_request()?;
        self.b.device.accept(request, link.b, &[])?;
        self.connected(End::A, link.a)?;
        self.connected(End::B, link.b)?;
        Ok(link)
    }

    /// The next request that side B gets, with its private data.
    pub fn connect_request(&mut self) -> Result<(RequestId, Vec<u8>), Failure> {
        match self.event(End::B)? {
            ControlEvent::ConnectRequest {
                request, private, ..
            } => Ok((request, private)),
            event => Err(Failure(format!(
                "expected a connection request, got {event:?}"
            ))),
        }
    }

    /// Waits for the event that says `qp` is connected, and gives the private data with it.
    pub fn connected(&mut self, end: End, qp: QpId) -> Result<Vec<u8>, Failure> {
        match self.event(end)? {
            ControlEvent::Connected { qp: of, private } if of == qp => Ok(private),
            event => Err(Failure(format!(
                "expected qp {qp} connected, got {event:?}"
            ))),
        }
    }

    pub fn event(&mut self, end: End) -> Result<ControlEvent, Failure> {
        for _ in 0..self.poll_limit {
            self.take_events();
            if let Some(event) = self.side(end).events.pop_front() {
                return Ok(event);
            }
            self.step();
        }
        Err(Failure(format!("no control event on side {end:?}")))
    }
}
