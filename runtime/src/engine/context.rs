//! A context, as its service sees it: the calls that are not operations.

use core::ops::Range;

use keyfence_mempool::Buf;
use keyfence_pmd::Rights;

use crate::context::state::OwnedBuf;
use crate::engine::lookup::LookupError;
use crate::engine::state::{Core, LcoreCaps};
use crate::error::{AllocError, FlushError, GrantError, RevokeError};
use crate::grant::table::Grant;
use crate::ids::{ContextId, GrantId, LcoreId, PeerId, RemoteContext};
use crate::lane::remote::Standing;
use crate::limits::{Limit, Limits};

/// One context, while its service runs. Every call is made on the context's lcore, inside the poll step, and none blocks, allocates or
/// enters the kernel.
///
/// It can't be kept beyond the call that it was lent to, so nothing is submitted for a context whose service is gone:
///
/// ```compile_fail
/// # use keyfence::{Context, Event, Service, Work};
/// struct Keeps(Option<&'static mut Context<'static>>);
///
/// impl Service for Keeps {
///     fn poll(&mut self, cx: &mut Context<'_>) -> Work {
///         self.0 = Some(cx);
///         Work::Idle
///     }
///     fn on_event(&mut self, _cx: &mut Context<'_>, _event: Event) {}
/// }
/// ```
///
/// What it says can be:
///
/// ```
/// # use keyfence::{Context, Event, Service, Work};
/// struct Keeps(Option<keyfence::ids::ContextId>);
///
/// impl Service for Keeps {
///     fn poll(&mut self, cx: &mut Context<'_>) -> Work {
///         self.0 = Some(cx.id());
///         Work::Idle
///     }
///     fn on_event(&mut self, _cx: &mut Context<'_>, _event: Event) {}
/// }
/// ```
///
/// A buffer that is given back can't be used in an operation:
///
/// ```compile_fail,E0382
/// # use keyfence::{Buf, Context, Import, Local};
/// # fn post(cx: &mut Context<'_>, import: &Import, buf: Buf) {
/// cx.free(buf);
/// let _ = cx.write(import, 0, &[Local::prefix(&buf, 8)], 1);
/// # }
/// ```
///
/// Given back behind the post it is reused only when the operation has ended:
///
/// ```
/// # use keyfence::{Buf, Context, Import, Local};
/// # fn post(cx: &mut Context<'_>, import: &Import, buf: Buf) {
/// let _ = cx.write(import, 0, &[Local::prefix(&buf, 8)], 1);
/// cx.free(buf);
/// # }
/// ```
#[derive(Debug)]
pub struct Context<'a> {
    pub(super) core: &'a mut Core,
    pub(super) slot: u16,
}

/// How long a grant lives without renewal by its holder's engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Lease {
    /// As configured (`timeouts.lease`).
    #[default]
    Configured,
    /// This many nanoseconds, at least twice the keep-alive interval.
    Ns(u64),
    /// For ever.
    None,
}

impl Context<'_> {
    /// The context's name in the engine.
    #[must_use]
    pub fn id(&self) -> ContextId {
        self.core.contexts.id(self.slot)
    }

    /// Its name for look-ups.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.core.contexts.get(self.slot).name
    }

    /// The lcore it lives on.
    #[must_use]
    pub fn lcore(&self) -> LcoreId {
        self.core.lcore
    }

    /// The time of this step, in nanoseconds, as the lcore's caller gave it.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.core.now_ns
    }

    /// Peers with which a session stands now.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.core
            .peer_ids()
            .filter(|peer| self.core.peers[peer.0 as usize].stands())
    }

    /// The peer whose configured name is `name`, whether a session stands or not.
    #[must_use]
    pub fn peer_by_name(&self, name: &str) -> Option<PeerId> {
        let mut peers = self.core.peer_ids();
        peers.find(|peer| self.core.peers[peer.0 as usize].name == name)
    }

    /// The limits of its lcore: the engine's share, and those of each context.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.core.limits
    }

    /// What this context uses of one of its own limits (`Limit::Context...`); `None` for any other. Buffers and messages that were dropped a
    /// moment ago may still count.
    #[must_use]
    pub fn in_use(&self, limit: Limit) -> Option<u64> {
        let context = self.core.contexts.get(self.slot);
        let quota = &context.quota;
        Some(match limit {
            Limit::ContextGrants => quota.grants.used(),
            Limit::ContextImports => quota.imports.used(),
            Limit::ContextExposedBytes => quota.exposed_bytes.used(),
            Limit::ContextBuffers => context.buffers.len() as u64,
            Limit::ContextOpsInFlight => quota.ops.used(),
            Limit::ContextBytesInFlight => quota.bytes.used(),
            Limit::ContextMessages => context.messages.len() as u64,
            _ => return None,
        })
    }

    /// Bytes of payload that one message to `to` may have, sent from a buffer ([`Context::send_from`]); `None` while no session stands with its engine.
    /// The least of what the peer takes in one frame, what the device moves at once and `limits.lane_bytes_in_flight`, each less the header.
    #[must_use]
    pub fn max_message_bytes(&self, to: &RemoteContext) -> Option<usize> {
        let lane = self.core.lane_to(to, self.slot)?;
        Some(self.core.longest_message_bytes(lane))
    }

    /// A buffer of at least `len` bytes, from the pool of the smallest that will do. Its bytes are what the last owner left; zeros if
    /// that one was reclaimed with it, in an engine with `memory.zero_on_release`.
    ///
    /// # Errors
    /// [`AllocError`] names the limit or the pool that stands in the way.
    pub fn alloc(&mut self, len: usize) -> Result<Buf, AllocError> {
        self.within(|cx| cx.take_buffer(len))
    }

    fn take_buffer(&mut self, len: usize) -> Result<Buf, AllocError> {
        if !self.core.contexts.get(self.slot).is_live() {
            return Err(AllocError::ContextClosed);
        }
        let largest = self
            .core
            .memory
            .pools
            .last()
            .map_or(0, |pool| pool.buffer_bytes);
        let fits = |pool: &super::state::LcorePool| pool.buffer_bytes >= len;
        let Some(first) = self.core.memory.pools.iter().position(fits) else {
            return Err(AllocError::TooLarge { len, largest });
        };
        self.core.admit_buffer(self.slot)?;
        let owner = self.core.owner_tag(self.slot);
        for pool in first..self.core.memory.pools.len() {
            if let Some(buf) = self.core.memory.pools[pool].cache.get(owner) {
                let owned = OwnedBuf {
                    pool: pool as u8,
                    id: buf.id(),
                    address: buf.address(),
                };
                self.core.contexts.get_mut(self.slot).buffers.push(owned);
                self.core.buffers.take(1).expect("admitted above");
                return Ok(buf);
            }
        }
        self.core.stats.alloc_failures += 1;
        Err(AllocError::PoolEmpty {
            buffer_bytes: self.core.memory.pools[first].buffer_bytes,
        })
    }

    /// Gives a buffer back at once. Dropping it does the same, at the price of an atomic operation more.
    pub fn free(&mut self, buf: Buf) {
        self.within(|cx| {
            if let Some(pool) = cx.core.pool_of(buf.address()) {
                // A put refuses what is held or foreign by dropping it, which is all that can be done with it.
                let _ = cx.core.memory.pools[pool as usize].cache.put(buf);
            }
        });
    }

    /// Opens `range` of `buf` to one context of a peer. The holder's engine learns the key behind its bind; the holder gets
    /// [`Event::Granted`](crate::Event::Granted). In key mode `region` the key is made off the lcore, after this call; if that fails the caller gets
    /// [`Event::KeyRefused`](crate::Event::KeyRefused), and the grant's end.
    ///
    /// # Errors
    /// [`GrantError`]; nothing has changed then.
    pub fn grant(
        &mut self,
        buf: &Buf,
        range: Range<usize>,
        rights: Rights,
        holder: RemoteContext,
        lease: Lease,
    ) -> Result<GrantId, GrantError> {
        self.within(|cx| cx.make_grant(buf, range, rights, holder, lease))
    }

    fn make_grant(
        &mut self,
        buf: &Buf,
        range: Range<usize>,
        rights: Rights,
        holder: RemoteContext,
        lease: Lease,
    ) -> Result<GrantId, GrantError> {
        let core = &mut *self.core;
        if !core.contexts.get(self.slot).is_live() {
            return Err(GrantError::ContextClosed);
        }
        check_opening(buf, &range, rights, core.caps)?;
        let pool = core
            .owned_pool(self.slot, buf)
            .ok_or(GrantError::ForeignBuffer)?;
        // A key works on one lane. The holder's own lane is taken, so that its sends stay in order with its writes.
        let lane = core
            .lane_to(&holder, holder.id.slot)
            .ok_or(GrantError::NoSession)?;
        if core
            .lane(lane)
            .link
            .peer_contexts
            .get(holder.id.slot as usize)
            .is_none_or(|known| known.standing(holder.id.generation) == Standing::Gone)
        {
            return Err(GrantError::HolderGone);
        }
        let len = (range.end - range.start) as u64;
        let lease_ns = match lease {
            Lease::Configured => core.timeouts.lease_ns,
            Lease::Ns(ns) => Some(core.check_lease(ns)?),
            Lease::None => None,
        };
        core.admit_grant(self.slot, holder.peer, lane, len)?;
        let grant = Grant {
            context: self.slot,
            holder,
            lane,
            key: None,
            keys_open: 0,
            keys_unproven: 0,
            keys_known: 0,
            buf: buf.id(),
            pool,
            address: buf.address() + range.start as u64,
            len,
            rights,
            lease_ns,
            made_ns: core.now_ns,
            retired: false,
            quarantined: false,
            ended: false,
        };
        core.hold(pool, buf.id());
        let id = core.grants.insert(grant).expect("admitted above");
        // On a lane that is being repaired its key comes with the list.
        if core.takes_keys(lane) {
            core.begin_key(id);
        }
        core.stats.grants_made += 1;
        Ok(id)
    }

    /// Takes a grant back. It ends as [`Event::Zapped`](crate::Event::Zapped) or
    /// [`Event::GrantQuarantined`](crate::Event::GrantQuarantined); until then its memory may still be accessed. Single revokes are batched
    /// (`limits.flush_watermark`, `timeouts.flush_interval`).
    ///
    /// # Errors
    /// [`RevokeError`] if the name is stale, or the grant is another context's.
    pub fn revoke(&mut self, grant: GrantId) -> Result<(), RevokeError> {
        match self.core.grants.get(grant) {
            Some(entry) if entry.context == self.slot && !entry.ended => {}
            Some(entry) if entry.context == self.slot => return Err(RevokeError::Stale),
            Some(_) => return Err(RevokeError::NotOwner),
            None => {
                self.core.stats.stale_names += 1;
                return Err(RevokeError::Stale);
            }
        }
        self.within(|cx| cx.core.retire(grant.slot));
        Ok(())
    }

    /// Goes on behind an operation of unknown end. Where one ended as [`Status::Indeterminate`](crate::Status::Indeterminate) since its lane broke, what the context had submitted to the same
    /// lcore of the peer behind it, and what it submits there until this call, ends as [`Status::NotSent`](crate::Status::NotSent): so nobody is told of data that may not be there. Call it
    /// when you have looked at such completions: it counts on those lanes of which all that ended so was told, and does nothing on the others, so call it behind each.
    pub fn resume(&mut self) {
        self.within(|cx| cx.core.resume(cx.slot));
    }

    /// Asks for proof that everything retired before this call, by whomever on this engine, has ended. Answered by
    /// [`Event::Flushed`](crate::Event::Flushed) with `token`.
    ///
    /// # Errors
    /// [`FlushError`] if too many flushes are under way.
    pub fn flush(&mut self, token: u64) -> Result<(), FlushError> {
        self.within(|cx| cx.core.start_flush(cx.slot, token))
    }

    /// Asks `peer` for its context named `name`; answered by [`Event::Resolved`](crate::Event::Resolved) with `token`.
    ///
    /// # Errors
    /// [`LookupError`] if the name is no name, no session stands, or too many questions are open.
    pub fn lookup(&mut self, peer: PeerId, name: &str, token: u64) -> Result<(), LookupError> {
        self.within(|cx| cx.core.start_lookup(cx.slot, peer, name, token))
    }

    /// Ends this context, after the running call has returned: its reclaim starts, and its service is dropped.
    pub fn close(&mut self) {
        self.within(|cx| cx.core.close(cx.slot));
    }

    /// Runs a call into the runtime: a panic in it is the runtime's own, and not the service's.
    pub(super) fn within<T>(&mut self, call: impl FnOnce(&mut Self) -> T) -> T {
        self.core.entered = true;
        let result = call(self);
        self.core.entered = false;
        result
    }
}

/// Whether a range can be opened at all.
fn check_opening(
    buf: &Buf,
    range: &Range<usize>,
    rights: Rights,
    caps: LcoreCaps,
) -> Result<(), GrantError> {
    if range.start >= range.end || range.end > buf.capacity() {
        return Err(GrantError::BadRange {
            start: range.start,
            end: range.end,
            buffer_bytes: buf.capacity(),
        });
    }
    if rights == Rights::NONE {
        return Err(GrantError::NoRights);
    }
    if rights.atomic && !caps.granted_atomics {
        return Err(GrantError::NoAtomics);
    }
    Ok(())
}

impl Core {
    /// A holder's engine renews by its signs of life: a lease must outlive the pause between two of them.
    fn check_lease(&self, lease_ns: u64) -> Result<u64, GrantError> {
        let least_ns = self.timeouts.keepalive_interval_ns.saturating_mul(2);
        if lease_ns < least_ns {
            return Err(GrantError::LeaseTooShort { lease_ns, least_ns });
        }
        Ok(lease_ns)
    }

    /// Takes the place of one grant in all gauges, or in none.
    fn admit_grant(
        &mut self,
        slot: u16,
        holder: PeerId,
        lane: crate::ids::LaneId,
        len: u64,
    ) -> Result<(), GrantError> {
        let in_use = self.grants.in_use();
        Limit::Grants.admit(self.limits.grants.into(), in_use.into(), 1)?;
        if !self.has_spare_key() {
            let grants = self.limits.grants.into();
            Limit::Grants.admit(grants, grants, 1)?;
        }
        let entry = self.lane(lane);
        if !self.takes_keys(lane) {
            self.admit_keyless_grant(lane)?;
        } else if !self.caps.regions && entry.free_windows.is_empty() {
            let windows = entry.windows.len() as u64;
            Limit::Windows.admit(windows, windows, 1)?;
        }
        let quota = &mut self.contexts.get_mut(slot).quota;
        let peer = &mut self.peers[holder.0 as usize].quota;
        let gauges = [
            (&mut quota.grants, 1),
            (&mut quota.exposed_bytes, len),
            (&mut peer.grants, 1),
            (&mut peer.exposed_bytes, len),
        ];
        for (gauge, amount) in &gauges {
            gauge.admits(*amount)?;
        }
        for (gauge, amount) in gauges {
            gauge.take(amount).expect("R9: seen above");
        }
        Ok(())
    }
}
