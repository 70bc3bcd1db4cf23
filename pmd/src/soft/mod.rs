//! `soft`: a software adapter between engines of one process, with the semantics of the real one.
//!
//! A [`Fabric`] is a network, a [`SoftDevice`] an adapter on it, a [`SoftPath`] the poll path of one of its lcores. Addresses are
//! `local:NAME`. Only threads of the engine that owns memory touch it: the requester copies its bytes into the segment of the queue pair, the
//! responder checks the key and copies them out, slice by slice. `DESIGN.md` of this crate says how and why.
//!
//! ```
//! use keyfence_mempool::{arena::{Arena, ArenaConfig}, sync::Arc};
//! use keyfence_pmd::soft::{Fabric, SoftConfig};
//! use keyfence_pmd::*;
//!
//! let fabric = Fabric::new();
//! let arena = Arc::new(Arena::map(&ArenaConfig::new(1 << 20))?);
//! let mut sides = Vec::new();
//! for _ in 0..2 {
//!     let device = fabric.device(SoftConfig::default())?;
//!     let (path, pd) = (device.open_path(LcoreId(0))?, device.alloc_pd()?);
//!     let region = device.register(pd, &arena, 0..1 << 20, Access { bind: true, remote: Rights::NONE })?;
//!     let qp = device.create_qp(&QpConfig {
//!         pd, lcore: LcoreId(0), send_depth: 16, receive_depth: 16, max_sge: 1, max_inline_bytes: 0,
//!     })?;
//!     sides.push((device, path, region, qp));
//! }
//! let [(here, mut path, region, qp), (there, mut peer_path, peer_region, peer_qp)] = sides.try_into().ok().unwrap();
//! there.listen("local:there")?;
//! here.start_connect(qp, "local:there", b"hello")?;
//! let Some(ControlEvent::ConnectRequest { request, .. }) = there.poll_event() else { panic!() };
//! there.accept(request, peer_qp, b"")?;
//!
//! // The peer opens 16 of its bytes through a window, and we write 5 of them.
//! let window = there.alloc_window(peer_qp)?;
//! let address = arena.address() + 4096;
//! let bind = WorkOp::Bind {
//!     window: window.id, region: peer_region.id, address, len: 16, rights: Rights::WRITE, rkey: window.rkey,
//! };
//! peer_path.post_burst(peer_qp, &[WorkRequest::new(WorkId(1), bind, SgeList::EMPTY)]);
//! let mut done = [Completion::EMPTY; 4];
//! assert_eq!(peer_path.poll_burst(&mut done), 1);
//! assert!(done[0].is_success());
//!
//! arena.dma(0, 5)?.write_from(b"fence")?;
//! let write = WorkOp::Write { remote: Remote { address, rkey: window.rkey }, immediate: None };
//! let source = SgeList::one(Sge::new(arena.address(), 5, region.lkey));
//! path.post_burst(qp, &[WorkRequest::new(WorkId(2), write, source)]);
//! peer_path.poll_burst(&mut done);
//! assert_eq!(path.poll_burst(&mut done), 1);
//! assert_eq!((done[0].id, done[0].status), (WorkId(2), WcStatus::Success));
//! assert_eq!(arena.dma(4096, 5)?.first_difference(b"fence")?, None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// loom has no segments.
#[cfg(not(loom))]
mod answers;
#[cfg(not(loom))]
mod arenas;
#[cfg(not(loom))]
mod books;
#[cfg(not(loom))]
mod completions;
#[cfg(not(loom))]
mod config;
#[cfg(not(loom))]
mod connect;
#[cfg(not(loom))]
mod control;
#[cfg(not(loom))]
mod datapath;
#[cfg(not(loom))]
mod device;
#[cfg(not(loom))]
mod endpoint;
#[cfg(not(loom))]
mod fabric;
#[cfg(all(test, not(loom)))]
mod hostile;
#[cfg(not(loom))]
mod keys;
#[cfg(not(loom))]
mod link;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod outgoing;
#[cfg(not(loom))]
mod receive_queue;
#[cfg(not(loom))]
mod requester;
#[cfg(not(loom))]
mod responder;
#[cfg(not(loom))]
mod send_queue;
#[cfg(not(loom))]
mod stream;
#[cfg(not(loom))]
mod windows;
#[cfg(not(loom))]
mod wire;

#[cfg(not(loom))]
pub use config::SoftConfig;
#[cfg(not(loom))]
pub use datapath::{PausedStep, SoftPath};
#[cfg(not(loom))]
pub use device::SoftDevice;
#[cfg(not(loom))]
pub use fabric::Fabric;
