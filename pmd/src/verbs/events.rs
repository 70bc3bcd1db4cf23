//! What the adapter reports by itself.

use keyfence_mempool::sync::Ordering;
use rdma_mummy_sys::ibv_event_type as event;

use super::books::Books;
use super::device::Shared;
use super::sys::AsyncEvent;

/// Asynchronous events of an adapter, counted since it was opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct AsyncCounts {
    /// A queue pair broke (`QP_FATAL`, `QP_REQ_ERR`, `QP_ACCESS_ERR`).
    pub qp_errors: u64,
    /// A completion queue overflowed or broke; its lcore gets no completion any more. Must stay 0.
    pub cq_errors: u64,
    /// The port went down, came up, or its addresses changed.
    pub port_changes: u64,
    /// The adapter is unusable until the device is opened again. Must stay 0.
    pub device_errors: u64,
    /// Grace periods that the kernel refused, for whatever reason: keys whose end waits for one are held until one succeeds. Must stay 0.
    pub grace_failures: u64,
    /// Anything else.
    pub others: u64,
}

impl Shared {
    /// Reads the adapter's events, and moves to error what a path could not.
    pub(crate) fn take_async(&self, books: &mut Books) {
        while let Some(event) = self.context.next_async() {
            books.take_async(event);
        }
        for record in books.qps.values() {
            if record.flags.refused.swap(false, Ordering::AcqRel) {
                // A queue pair that cannot even be moved to error ends when it is destroyed.
                let _ = record.fail();
            }
        }
    }
}

impl Books {
    fn take_async(&mut self, event: AsyncEvent) {
        let counts = &mut self.async_events;
        let is = |of: event| event.code == of as u32;
        if is(event::IBV_EVENT_QP_FATAL)
            || is(event::IBV_EVENT_QP_REQ_ERR)
            || is(event::IBV_EVENT_QP_ACCESS_ERR)
        {
            counts.qp_errors += 1;
            let number = event.qp_number;
            let mut records = self.qps.values();
            if let Some(record) = records.find(|record| number == Some(record.qp.number())) {
                record.flags.failed.store(true, Ordering::Release);
            }
        } else if is(event::IBV_EVENT_CQ_ERR) {
            counts.cq_errors += 1;
        } else if is(event::IBV_EVENT_DEVICE_FATAL) {
            counts.device_errors += 1;
        } else if is(event::IBV_EVENT_PORT_ACTIVE)
            || is(event::IBV_EVENT_PORT_ERR)
            || is(event::IBV_EVENT_LID_CHANGE)
            || is(event::IBV_EVENT_PKEY_CHANGE)
            || is(event::IBV_EVENT_SM_CHANGE)
            || is(event::IBV_EVENT_GID_CHANGE)
        {
            counts.port_changes += 1;
        } else {
            counts.others += 1;
        }
    }
}
