//! The probe of an RDMA adapter: fresh devices of the driver for what the contract can express, and queue pairs without the driver's checks
//! for what it refuses or does not have.

mod address;
mod bench;
mod checks;
mod learn;

use std::net::{IpAddr, SocketAddr, TcpListener};

pub use learn::{Learned, self_test};

use super::config::{KnownCaps, VerbsConfig};
use super::device::VerbsDevice;
use super::error::VerbsError;
use super::sys::{ForkStatus, fork_status};
use crate::probe::{Check, Observed, Pair, Subject};

/// An adapter to be probed.
#[derive(Clone, Debug)]
pub struct Adapter {
    config: VerbsConfig,
    host: IpAddr,
}

impl Adapter {
    /// The adapter that a configuration names, with its port and its path settings. Connections go to `host`, an address of the adapter's
    /// own interface; `None` looks for one in the port's GID table, which has those of RoCE and not those of InfiniBand.
    ///
    /// # Errors
    /// What [`VerbsDevice::open`] says, and [`VerbsError::NoAddress`].
    pub fn find(config: &VerbsConfig, host: Option<IpAddr>) -> Result<Self, VerbsError> {
        let opened = VerbsDevice::open(claiming(config))?;
        let adapter = &opened.shared().adapter;
        let host = host.or_else(|| address::of_port(adapter, config.port));
        let host = host.ok_or_else(|| VerbsError::NoAddress {
            adapter: adapter.clone(),
            port: config.port,
        })?;
        Ok(Self {
            config: VerbsConfig {
                device: Some(adapter.clone()),
                ..claiming(config)
            },
            host,
        })
    }

    /// The adapter's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.config.device.as_deref().unwrap_or_default()
    }
}

/// The configuration of a device under test: of modest size, and with everything claimed that is to be found out, since what is denied is
/// not tested. Nothing is claimed of invalidations, so that the suite posts none that could stop the host.
fn claiming(config: &VerbsConfig) -> VerbsConfig {
    VerbsConfig {
        max_lcores: 1,
        max_windows: 4096,
        completions: 8192,
        known: KnownCaps {
            window_bounds: Some(true),
            window_scope: Some(true),
            window_atomics: Some(true),
            chain_stops: Some(true),
            dealloc_fences: Some(true),
            invalidate_checks: None,
            ..config.known
        },
        ..config.clone()
    }
}

/// Half a minute at least, on any machine.
const MAX_POLLS: u32 = 100_000_000;

impl Subject for Adapter {
    type Device = VerbsDevice;

    fn pair(&self) -> Result<Pair<VerbsDevice>, String> {
        let open = || VerbsDevice::open(self.config.clone()).map_err(|error| error.to_string());
        Ok(Pair {
            a: open()?,
            b: open()?,
            address: SocketAddr::new(self.host, free_port(self.host)?).to_string(),
            // The check's deadline comes first; a thread that is late ends some time after it.
            poll_limit: MAX_POLLS,
            settle_polls: 4000,
            pause: std::thread::yield_now,
        })
    }

    fn beside_the_contract(&self, check: Check) -> Option<Observed> {
        let how = match check {
            Check::ChainStops => checks::chain_stops,
            Check::InvalidateChecks => checks::invalidate_checks,
            Check::DoubleInvalidation => checks::double_invalidation,
            Check::SendWithInvScope => checks::send_with_inv_scope,
            Check::Fork => return Some(fork()),
            _ => return None,
        };
        Some(how(&self.config).unwrap_or_else(Observed::fail))
    }
}

/// A port that no socket has. The connection manager's ports are other ones, so this is but a guess that rarely fails.
fn free_port(host: IpAddr) -> Result<u16, String> {
    let free = TcpListener::bind((host, 0)).and_then(|socket| socket.local_addr());
    let free = free.map_err(|error| format!("{host} is no address of this host: {error}"));
    Ok(free?.port())
}

fn fork() -> Observed {
    match fork_status() {
        ForkStatus::Unneeded => {
            Observed::pass("the kernel copies pinned pages for a child at once")
        }
        ForkStatus::Enabled => {
            Observed::pass("ibv_fork_init keeps registered pages out of a child")
        }
        ForkStatus::Disabled => Observed::fail("ibv_fork_init was refused"),
        ForkStatus::Unknown(word) => Observed::fail(format!("ibv_is_fork_initialized says {word}")),
    }
}
