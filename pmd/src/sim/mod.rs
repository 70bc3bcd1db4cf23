//! `sim`: simulated adapters in virtual time, the whole of it determined by one seed, and hostile on demand.
//!
//! A [`World`] is a clock, a network and everything on it; a [`SimDevice`] is an adapter of it, a [`SimPath`] the poll path of one of its lcores.
//! Nothing happens but in [`World::advance_to`]: posts and polls see the world as it is at its present time. One thread steps everything, so the same
//! seed and the same calls give the same run. Addresses are `local:NAME`. `DESIGN.md` of this crate says what is drawn and what stands fast.
//!
//! It allocates and takes a lock on its paths: it is for proof and not for speed.
//!
//! ```
//! use keyfence_mempool::{arena::{Arena, ArenaConfig}, sync::Arc};
//! use keyfence_pmd::sim::{SimConfig, World};
//! use keyfence_pmd::*;
//!
//! let world = World::new(7, SimConfig { accesses_max: 100, ..SimConfig::default() })?;
//! let arena = Arc::new(Arena::map(&ArenaConfig::new(1 << 20))?);
//! let mut sides = Vec::new();
//! for name in ["here", "there"] {
//!     let device = world.device(name);
//!     let (path, pd) = (device.open_path(LcoreId(0))?, device.alloc_pd()?);
//!     let region = device.register(pd, &arena, 0..1 << 20, Access { bind: true, remote: Rights::NONE })?;
//!     let qp = device.create_qp(&QpConfig {
//!         pd, lcore: LcoreId(0), send_depth: 16, receive_depth: 16, max_sge: 1, max_inline_bytes: 0,
//!     })?;
//!     sides.push((device, path, region, qp));
//! }
//! let [(here, mut path, region, qp), (there, mut peer_path, _, peer_qp)] = sides.try_into().ok().unwrap();
//! there.listen("local:there")?;
//! here.start_connect(qp, "local:there", b"hello")?;
//! world.advance_to(1_000_000);
//! let Some(ControlEvent::ConnectRequest { request, .. }) = there.poll_event() else { panic!() };
//! there.accept(request, peer_qp, b"")?;
//! world.advance_to(2_000_000);
//!
//! // A message of 5 bytes: nothing is done at the post, everything a millisecond later.
//! arena.dma(0, 5)?.write_from(b"fence")?;
//! let sge = |offset| Sge::new(arena.address() + offset, 5, region.lkey);
//! peer_path.post_receives(peer_qp, &[ReceiveRequest { id: WorkId(1), sge: sge(4096) }]);
//! path.post_burst(qp, &[WorkRequest::new(WorkId(2), WorkOp::Send { immediate: None }, SgeList::one(sge(0)))]);
//! let mut done = [Completion::EMPTY; 4];
//! assert_eq!(path.poll_burst(&mut done), 0);
//! world.advance_to(3_000_000);
//! assert_eq!(path.poll_burst(&mut done), 1);
//! assert_eq!((done[0].id, done[0].status), (WorkId(2), WcStatus::Success));
//! assert_eq!(arena.dma(4096, 5)?.first_difference(b"fence")?, None);
//!
//! // What touched memory: the read of the source, the write of the receive.
//! let mut accesses = Vec::new();
//! world.take_accesses(&mut accesses);
//! assert_eq!(accesses.iter().map(|access| access.is_write).collect::<Vec<_>>(), [false, true]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adapter;
mod answers;
mod breach;
mod complete;
mod config;
mod connect;
mod device;
mod faults;
mod fence;
mod key_life;
mod keys;
mod land;
mod landing;
mod memory;
mod objects;
mod packet;
mod qp;
mod random;
mod receives;
mod record;
mod requester;
mod responder;
mod state;
mod world;

pub use breach::Breach;
pub use config::{MAX_PRIVATE_BYTES, Nanos, SimConfig};
pub use device::{SimDevice, SimPath};
pub use faults::{Fired, SimFault, SimFaults, Sometimes};
pub use record::{Access, AccessKey};
pub use world::World;
