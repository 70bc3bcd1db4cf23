//! Queue pairs of one adapter without the driver's checks: what is posted here goes to the adapter as it is.

use std::sync::Arc;

use keyfence_mempool::arena::{Arena, ArenaConfig, PageSize, Policy};
use keyfence_mempool::sync;
use rdma_mummy_sys::ibv_wc_status as wc;

use super::MAX_POLLS;
use crate::ids::Rkey;
use crate::verbs::config::VerbsConfig;
use crate::verbs::sys::{Chain, Context, Cq, Limits, Mr, Mw, Pd, Qp, QpSizes, Route, SendOp, Wc};
use crate::work::{Remote, Rights, Sge};

/// One context, one completion queue, and 8 KiB: [`TARGET_BYTES`] that windows open, and the same again as the source of writes.
pub(super) struct Bench {
    context: Arc<Context>,
    cq: Arc<Cq>,
    route: Route,
    limits: Limits,
    chain: Chain,
    arena: sync::Arc<Arena>,
    next_id: u64,
    seen: Vec<(u64, u32)>,
}

/// Two connected queue pairs. Windows are allocated after them and must be dropped before.
pub(super) struct Link {
    pub(super) a: Qp,
    pub(super) b: Qp,
}

/// Bytes that windows open.
pub(super) const TARGET_BYTES: usize = 4096;
const DEPTH: u32 = 16;

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Whether a status is a success.
pub(super) fn is_success(status: u32) -> bool {
    status == wc::IBV_WC_SUCCESS
}

/// Whether a request was flushed and not refused for what it is.
pub(super) fn is_flushed(status: u32) -> bool {
    status == wc::IBV_WC_WR_FLUSH_ERR
}

impl Bench {
    pub(super) fn new(config: &VerbsConfig) -> Result<Self, String> {
        let opened = Context::open(config.device.as_deref()).map_err(text)?;
        let context = Arc::new(opened.map_err(|_| "the adapter is gone".to_owned())?);
        let cq = Cq::create(&context, 16 * DEPTH).map_err(text)?;
        let route = context.route_to_itself(config.port, config.gid_index);
        let arena = Arena::map(&ArenaConfig {
            page_size: PageSize::Base4KiB,
            transparent: false,
            hugepages: Policy::Off,
            lock: Policy::Off,
            ..ArenaConfig::new(2 * TARGET_BYTES)
        });
        Ok(Self {
            route: route.map_err(|error| format!("no way from the port to itself: {error}"))?,
            limits: context.limits(config.port).map_err(text)?,
            context,
            cq: Arc::new(cq),
            chain: Chain::new(0),
            arena: sync::Arc::new(arena.map_err(text)?),
            next_id: 0,
            seen: Vec::new(),
        })
    }

    pub(super) fn domain(&self) -> Result<Arc<Pd>, String> {
        Ok(Arc::new(Pd::alloc(&self.context).map_err(text)?))
    }

    /// All memory, without remote rights.
    pub(super) fn region(&self, pd: &Arc<Pd>, bind: bool) -> Result<Mr, String> {
        Mr::register(pd, &self.arena, 0..2 * TARGET_BYTES, Rights::NONE, bind).map_err(text)
    }

    /// A pair whose sides are in these domains.
    pub(super) fn link(&self, a: &Arc<Pd>, b: &Arc<Pd>) -> Result<Link, String> {
        let sizes = QpSizes {
            send_depth: DEPTH,
            receive_depth: DEPTH,
            max_sge: 1,
            max_inline_bytes: 0,
            windows: true,
            atomics: false,
            extended: false,
        };
        let make = |pd: &Arc<Pd>| Qp::create(pd, &self.cq, &sizes).map_err(text);
        let link = Link {
            a: make(a)?,
            b: make(b)?,
        };
        let resources = (self.limits.max_responded, self.limits.max_initiated);
        for (qp, peer) in [(&link.a, &link.b), (&link.b, &link.a)] {
            let connected = qp.connect_to(peer.number(), &self.route, resources);
            connected.map_err(|error| format!("two queue pairs did not connect: {error}"))?;
        }
        Ok(link)
    }

    fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Posts requests with one doorbell, the last one signaled, and gives their numbers; `None` if the library does not take all.
    pub(super) fn post(
        &mut self,
        qp: &Qp,
        ops: &[SendOp<'_>],
        local: Option<&Mr>,
    ) -> Option<Vec<u64>> {
        let ids: Vec<_> = ops.iter().map(|_| self.fresh_id()).collect();
        let source = self.arena.address() + TARGET_BYTES as u64;
        let sge = local.map(|region| Sge {
            address: source,
            len: 8,
            lkey: region.lkey(),
        });
        let mut posting = self.chain.begin(qp, false);
        for (at, (op, id)) in ops.iter().zip(&ids).enumerate() {
            let signaled = at + 1 == ops.len();
            let sges = match op {
                SendOp::Bind { .. } | SendOp::Invalidate(_) => &[][..],
                _ => sge.as_slice(),
            };
            posting.push((*id, signaled, false), *op, sges, None);
        }
        (posting.finish() == ops.len()).then_some(ids)
    }

    /// Posts receives without bytes.
    pub(super) fn receive(&mut self, qp: &Qp) -> Result<u64, String> {
        let id = self.fresh_id();
        let none = Sge {
            address: 0,
            len: 0,
            lkey: 0,
        };
        let given = self.chain.post_receives(qp, [(id, none)].into_iter());
        (given == 1)
            .then_some(id)
            .ok_or("a receive was not taken".into())
    }

    pub(super) fn send_with_invalidation(&mut self, qp: &Qp, rkey: u32) -> std::io::Result<u64> {
        let id = self.fresh_id();
        qp.send_with_invalidation(id, rkey).map(|()| id)
    }

    /// The status of a request, as soon as its completion is there.
    pub(super) fn status(&mut self, id: u64) -> Result<u32, String> {
        for _ in 0..MAX_POLLS {
            if let Some(status) = self.seen_status(id) {
                return Ok(status);
            }
            self.poll();
            std::thread::yield_now();
        }
        Err("no completion".into())
    }

    /// The status of a request whose completion has come.
    pub(super) fn seen_status(&self, id: u64) -> Option<u32> {
        let seen = self.seen.iter().find(|(of, _)| *of == id);
        seen.map(|(_, status)| *status)
    }

    fn poll(&mut self) {
        let mut done = [const { None::<Wc> }; 8].map(|_| Wc::empty());
        let count = self.cq.poll(&mut done);
        self.seen.extend(
            done[..count]
                .iter()
                .map(|done| (done.wr_id(), done.status())),
        );
    }

    /// Posts one request and waits for its status.
    pub(super) fn run(
        &mut self,
        qp: &Qp,
        op: SendOp<'_>,
        local: Option<&Mr>,
    ) -> Result<u32, String> {
        let ids = self.post(qp, &[op], local);
        let ids = ids.ok_or_else(|| format!("the library did not take {op:?}"))?;
        self.status(ids[0])
    }

    /// A bind of the whole target.
    pub(super) fn bind<'a>(&self, window: &'a Mw, region: &'a Mr, rkey: u32) -> SendOp<'a> {
        SendOp::Bind {
            window,
            region,
            address: self.arena.address(),
            len: TARGET_BYTES as u64,
            rights: Rights::READ_WRITE,
            rkey,
        }
    }

    /// A fresh window that opens the target through this queue pair, and its key.
    pub(super) fn open(&mut self, qp: &Qp, pd: &Arc<Pd>, region: &Mr) -> Result<(Mw, u32), String> {
        let window = Mw::alloc(pd).map_err(text)?;
        let rkey = next_tag(window.rkey());
        let bind = self.bind(&window, region, rkey);
        match self.run(qp, bind, None)? {
            wc::IBV_WC_SUCCESS => Ok((window, rkey)),
            status => Err(format!("a bind ended with status {status}")),
        }
    }

    /// Whether a key opens the target on this queue pair.
    pub(super) fn opens(&mut self, qp: &Qp, rkey: u32, local: &Mr) -> Result<bool, String> {
        let target = sync::Arc::clone(&self.arena);
        let target = target.dma(0, 2 * TARGET_BYTES).map_err(text)?;
        target.store_u64(0, 0).map_err(text)?;
        target.store_u64(TARGET_BYTES, u64::MAX).map_err(text)?;
        let remote = Remote {
            address: self.arena.address(),
            rkey: Rkey(rkey),
        };
        let status = self.run(qp, SendOp::Write(remote, None), Some(local))?;
        let landed = target.load_u64(0).map_err(text)? == u64::MAX;
        match (is_success(status), landed) {
            (true, true) => Ok(true),
            (false, false) => Ok(false),
            (_, landed) => Err(format!(
                "a write ended with status {status}, landed: {landed}"
            )),
        }
    }
}

/// The same key with the next tag.
pub(super) fn next_tag(rkey: u32) -> u32 {
    let rkey = Rkey(rkey);
    rkey.with_tag(rkey.tag().wrapping_add(1)).0
}
