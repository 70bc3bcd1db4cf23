//! How an adapter is opened, and what is known of it that no query tells.

use std::path::Path;

use super::sys::Limits;
use crate::device::Caps;
use crate::error::{ControlError, within};
use crate::work::MAX_SGE;

/// Bytes of private data: what a request of the connection manager carries.
pub const MAX_PRIVATE_BYTES: usize = 56;

/// Sizes, path settings and facts of one adapter. Each limit is the adapter's own if that is smaller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerbsConfig {
    /// The adapter's name (`mlx5_0`); `None` is the only one there is.
    pub device: Option<String>,
    /// Its port, 1 to 255.
    pub port: u8,
    /// Index in the port's GID table; `None` leaves it to the connection manager, which takes the one of the source address.
    pub gid_index: Option<u8>,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096; `None` leaves it to the connection manager. Both sides must have the same.
    pub mtu_bytes: Option<u32>,
    /// Traffic class of what connections send.
    pub traffic_class: u8,
    /// Transport retries, 0 to 6. 7 is refused: some adapters then retry for ever.
    pub retry_count: u8,
    /// Retries for want of a receive, 0 to 7. 7 means for ever.
    pub rnr_retry_count: u8,
    /// What a side without a receive asks its peer to wait: the code of InfiniBand, 1 (0.01 ms) to 31 (491 ms); 12 is 0.64 ms.
    pub min_rnr_timer: u8,
    /// Local ACK timeout of 4.096 us x 2^n, 1 to 31.
    pub ack_timeout_exponent: u8,
    /// How long resolving an address or a route may take, in milliseconds, 1 to 60,000.
    pub resolve_timeout_ms: u32,
    /// Lcores, 1 to 256.
    pub max_lcores: u16,
    /// Queue pairs at a time, 1 to 65,536.
    pub max_qps: u32,
    /// Windows at a time, 0 to 2^20; with 0 there are none ([`Caps::windows`]).
    pub max_windows: u32,
    /// Regions at a time, 1 to 2^20.
    pub max_regions: u32,
    /// Work requests of a queue pair, and receives, 1 to 65,536.
    pub max_depth: u32,
    /// Bytes of an inline request, 0 to 1,024.
    pub max_inline_bytes: u32,
    /// Completions that a lcore's queue holds, 2 to 2^22: the sum of the depths of its queue pairs at most.
    pub completions: u32,
    /// How long `deregister` and `dealloc_window` wait for a lcore to leave its step, in nanoseconds.
    pub quiesce_timeout_ns: u64,
    /// Post by `ibv_wr_*` where the adapter can, else by lists.
    pub extended_posts: bool,
    /// What is known of the adapter; what is not is taken to be missing.
    pub known: KnownCaps,
}

/// Facts that no query tells, from a self-test or a measurement. `None`: not known, so not relied on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KnownCaps {
    /// [`Caps::window_bounds`].
    pub window_bounds: Option<bool>,
    /// [`Caps::window_scope`]; true where there are windows unless it is known to be false: windows of type 2B are bound to a queue pair.
    pub window_scope: Option<bool>,
    /// [`Caps::window_atomics`].
    pub window_atomics: Option<bool>,
    /// [`Caps::chain_stops`]. Where it is false the driver asks for a completion of each bind and invalidation.
    pub chain_stops: Option<bool>,
    /// [`Caps::dealloc_fences`].
    pub dealloc_fences: Option<bool>,
    /// [`Caps::invalidate_checks`].
    pub invalidate_checks: Option<bool>,
    /// The adapter is this kernel's software. The packet that is being copied when its key ends is copied to its end, so a grace period (some
    /// ten milliseconds) must be over before the end of a key is told: the completion of an invalidation is held back until
    /// [`poll_event`](crate::Control::poll_event) has run one, and `dealloc_window` of a window that was bound waits for one. `None`: it is
    /// software unless it stands on a bus (`/sys/class/infiniband/NAME/device`).
    pub software: Option<bool>,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            device: None,
            port: 1,
            gid_index: None,
            mtu_bytes: None,
            traffic_class: 0,
            retry_count: 6,
            rnr_retry_count: 6,
            min_rnr_timer: 12,
            ack_timeout_exponent: 14,
            resolve_timeout_ms: 2000,
            max_lcores: 16,
            max_qps: 1024,
            max_windows: 65_536,
            max_regions: 4096,
            max_depth: 8192,
            max_inline_bytes: 256,
            completions: 32_768,
            quiesce_timeout_ns: 100_000_000,
            extended_posts: true,
            known: KnownCaps::default(),
        }
    }
}

impl VerbsConfig {
    /// Checks every value against its range; the error names the first that is outside.
    pub(crate) fn check(&self) -> Result<(), ControlError> {
        within("port", self.port, 1, 255)?;
        within("retry_count", self.retry_count, 0, 6)?;
        within("rnr_retry_count", self.rnr_retry_count, 0, 7)?;
        within("min_rnr_timer", self.min_rnr_timer, 1, 31)?;
        within("ack_timeout_exponent", self.ack_timeout_exponent, 1, 31)?;
        within("resolve_timeout_ms", self.resolve_timeout_ms, 1, 60_000)?;
        within("max_lcores", self.max_lcores, 1, 256)?;
        within("max_qps", self.max_qps, 1, 1 << 16)?;
        within("max_windows", self.max_windows, 0, 1 << 20)?;
        within("max_regions", self.max_regions, 1, 1 << 20)?;
        within("max_depth", self.max_depth, 1, 1 << 16)?;
        within("max_inline_bytes", self.max_inline_bytes, 0, 1024)?;
        within("completions", self.completions, 2, 1 << 22)?;
        match self.mtu_bytes {
            Some(bytes) if self.mtu_code().is_none() => {
                within("mtu_bytes (a power of two)", bytes, 256, 4096)?;
                let (min, max) = (bytes.next_power_of_two() / 2, bytes.next_power_of_two());
                within("mtu_bytes", bytes, max.into(), min.into())
            }
            _ => Ok(()),
        }
    }

    /// Checks what the file says of the port against what this adapter's has. Some adapters take what they don't have, and nothing arrives.
    pub(crate) fn check_port(&self, limits: &Limits) -> Result<(), ControlError> {
        within("port", self.port, 1, limits.ports.into())?;
        if let Some(index) = self.gid_index {
            let last = limits.gid_entries.saturating_sub(1);
            within("gid_index", index, 0, last.into())?;
        }
        match self.mtu_code() {
            Some(code) if code > limits.active_mtu => {
                let (wanted, has) = (mtu_bytes(code), mtu_bytes(limits.active_mtu));
                within("mtu (bytes)", wanted, mtu_bytes(1), has)
            }
            _ => Ok(()),
        }
    }

    /// `enum ibv_mtu`.
    pub(crate) fn mtu_code(&self) -> Option<u32> {
        let bytes = self.mtu_bytes.filter(|bytes| bytes.is_power_of_two())?;
        (256..=4096)
            .contains(&bytes)
            .then(|| bytes.trailing_zeros() - 7)
    }

    /// Whether the adapter of this name is software. What is not known to be hardware is.
    pub(crate) fn is_software(&self, adapter: &str) -> bool {
        let classes = Path::new("/sys/class/infiniband");
        let known = self.known.software;
        known.unwrap_or_else(|| !is_on_a_bus(classes, adapter))
    }

    /// What this adapter can do, under this configuration.
    pub(crate) fn caps(&self, limits: &Limits, max_inline_bytes: u32) -> Caps {
        let at_most = |ours: u32, adapters: u64| u64::from(ours).min(adapters.max(1)) as u32;
        let known = self.known;
        let depth = at_most(self.max_depth, limits.max_depth);
        let windows = limits.windows && limits.max_windows > 0 && self.max_windows > 0;
        Caps {
            name: "verbs",
            max_lcores: self.max_lcores,
            max_qps: at_most(self.max_qps, limits.max_qps),
            max_windows: at_most(self.max_windows, limits.max_windows),
            max_regions: at_most(self.max_regions, limits.max_regions),
            max_send_depth: depth,
            max_receive_depth: depth,
            max_sge: MAX_SGE.min(limits.max_sge as usize).max(1),
            max_inline_bytes: max_inline_bytes as usize,
            // Spares the adapter a read across the bus.
            inline_pays_bytes: max_inline_bytes as usize,
            max_operation_bytes: limits.max_message_bytes,
            max_private_bytes: MAX_PRIVATE_BYTES,
            windows,
            window_bounds: known.window_bounds.unwrap_or(false),
            window_scope: windows && known.window_scope.unwrap_or(true),
            atomics: limits.atomics,
            window_atomics: known.window_atomics.unwrap_or(false),
            tag_bits: 8,
            chain_stops: known.chain_stops.unwrap_or(false),
            dealloc_fences: known.dealloc_fences.unwrap_or(false),
            invalidate_checks: known.invalidate_checks.unwrap_or(false),
        }
    }
}

/// Bytes of an `enum ibv_mtu`.
fn mtu_bytes(code: u32) -> u64 {
    128 << code.min(5)
}

/// Whether a device of this class has one behind it. A software adapter belongs to no bus.
fn is_on_a_bus(class: &Path, name: &str) -> bool {
    !name.is_empty() && class.join(name).join("device").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mtu_is_one_of_five() {
        for (bytes, code) in [(256, 1), (512, 2), (1024, 3), (2048, 4), (4096, 5)] {
            let config = VerbsConfig {
                mtu_bytes: Some(bytes),
                ..VerbsConfig::default()
            };
            config.check().unwrap();
            assert_eq!(config.mtu_code(), Some(code));
        }
        for bytes in [0, 128, 1000, 1500, 8192] {
            let config = VerbsConfig {
                mtu_bytes: Some(bytes),
                ..VerbsConfig::default()
            };
            assert!(matches!(
                config.check(),
                Err(ControlError::OutOfRange { value, .. }) if value == u64::from(bytes)
            ));
        }
    }

    #[test]
    fn an_adapter_that_is_not_known_to_be_hardware_is_software() {
        let class = std::env::temp_dir().join(format!("keyfence-class-{}", std::process::id()));
        std::fs::create_dir_all(class.join("on_a_bus/device")).unwrap();
        std::fs::create_dir_all(class.join("on_none")).unwrap();
        assert!(is_on_a_bus(&class, "on_a_bus"));
        assert!(!is_on_a_bus(&class, "on_none"));
        assert!(!is_on_a_bus(&class, "unknown"));
        assert!(!is_on_a_bus(&class, ""));
        std::fs::remove_dir_all(&class).unwrap();
        let says = |software| VerbsConfig {
            known: KnownCaps {
                software,
                ..KnownCaps::default()
            },
            ..VerbsConfig::default()
        };
        assert!(says(None).is_software("no adapter has this name"));
        assert!(says(Some(true)).is_software("any"));
        assert!(!says(Some(false)).is_software("any"));
    }

    #[test]
    fn what_the_port_does_not_have_is_refused() {
        let limits = Limits {
            max_qps: 1,
            max_depth: 1,
            max_sge: 1,
            max_cqes: 1,
            max_regions: 1,
            max_windows: 1,
            max_initiated: 1,
            max_responded: 1,
            windows: true,
            atomics: true,
            ports: 2,
            max_message_bytes: 1,
            active_mtu: 3,
            gid_entries: 16,
        };
        let refused = |config: VerbsConfig| config.check_port(&limits).err();
        let with = |port, gid_index, mtu_bytes| VerbsConfig {
            port,
            gid_index,
            mtu_bytes,
            ..VerbsConfig::default()
        };
        for good in [with(1, None, None), with(2, Some(15), Some(1024))] {
            assert_eq!(refused(good), None);
        }
        for (bad, of, allowed) in [
            (with(3, None, None), 3, (1, 2)),
            (with(1, Some(16), None), 16, (0, 15)),
            (with(1, None, Some(2048)), 2048, (256, 1024)),
        ] {
            assert!(matches!(
                refused(bad),
                Some(ControlError::OutOfRange { value, min, max, .. }) if value == of && (min, max) == allowed
            ));
        }
    }

    #[test]
    fn endless_retries_are_refused() {
        let config = VerbsConfig {
            retry_count: 7,
            ..VerbsConfig::default()
        };
        assert!(config.check().is_err());
    }
}
