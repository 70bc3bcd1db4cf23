//! Whether the values of an engine that is built in code are legal and fit together, by the ranges and checks of a file, and whether its device has what they
//! ask for.

use keyfence_pmd::{Caps, Control};

use crate::config::{Config, KeyMode, PeerConfig};
use crate::context::ops::MAX_RANGES;
use crate::engine::build::{BuildError, EngineBuilder, PeerPlan, is_fabric};
use crate::session::name_tag;

impl EngineBuilder {
    /// Holds the values against the ranges of the configuration, and against each other.
    pub(super) fn check_values(&self) -> Result<(), BuildError> {
        let Err(errors) = self.values().check() else {
            return Ok(());
        };
        let first = errors.as_slice()[0].clone();
        Err(BuildError::BadValue {
            key: first.key,
            what: first.what,
            allowed: first.allowed,
        })
    }

    /// The values as a configuration of one engine. An address is the device's own business.
    fn values(&self) -> Config {
        let peer = |plan: &PeerPlan| PeerConfig {
            name: plan.name.clone(),
            lcores: plan.lcores,
            ..PeerConfig::default()
        };
        let mut limits = self.limits.clone();
        let buffers = u32::try_from(self.memory.buffers()).unwrap_or(u32::MAX);
        limits.buffers = limits.buffers.min(buffers.max(1));
        let peers = self.peers.iter().map(peer).collect();
        Config::of_engine(
            self.engine.clone(),
            self.memory.clone(),
            limits,
            self.timeouts.clone(),
            peers,
        )
    }

    /// R12: who is to be known by a secret has one, who connects has where to, and no two are taken for each other.
    pub(super) fn check_peers(&self) -> Result<(), BuildError> {
        for (at, peer) in self.peers.iter().enumerate() {
            if peer.wants_secret && peer.secret.is_none() {
                let peer = peer.name.clone();
                return Err(BuildError::NoSecret { peer });
            }
            let connects_here = is_fabric(&peer.address) && peer.name < self.engine.name;
            if connects_here && self.listen.is_none() {
                let peer = peer.name.clone();
                return Err(BuildError::ListensNowhere { peer });
            }
            let same = |other: &&PeerPlan| name_tag(&other.name) == name_tag(&peer.name);
            if let Some(other) = self.peers[..at].iter().find(same) {
                return Err(BuildError::NamesCollide {
                    one: other.name.clone(),
                    other: peer.name.clone(),
                });
            }
        }
        Ok(())
    }

    /// Whether the device has what the values ask for. Touches nothing.
    pub(super) fn check(&self, device: &impl Control) -> Result<u16, BuildError> {
        let caps = device.caps();
        let lcores = self.engine.lcores.len();
        self.check_peers()?;
        let unfit = |lacks: String, remedy| BuildError::Unfit {
            device: caps.name,
            lacks,
            remedy,
        };
        if lcores > caps.max_lcores.into() {
            return Err(unfit(
                format!("has paths for {} lcores, not for {lcores}", caps.max_lcores),
                "start fewer lcores",
            ));
        }
        self.check_key_mode(caps)?;
        if caps.max_send_depth < self.limits.send_depth
            || caps.max_receive_depth < self.limits.receive_depth
        {
            let lacks = format!(
                "queues at most {} and {}",
                caps.max_send_depth, caps.max_receive_depth
            );
            return Err(unfit(
                lacks,
                "lower limits.send_depth and limits.receive_depth",
            ));
        }
        if caps.max_operation_bytes < self.limits.slice_bytes {
            let lacks = format!("moves at most {} bytes at once", caps.max_operation_bytes);
            return Err(unfit(lacks, "lower limits.slice"));
        }
        if caps.max_sge < 1 + MAX_RANGES {
            return Err(unfit(
                format!("takes {} scatter/gather entries", caps.max_sge),
                "use one that takes 3",
            ));
        }
        Ok(lcores as u16)
    }

    fn check_key_mode(&self, caps: &Caps) -> Result<(), BuildError> {
        match self.key_mode {
            KeyMode::Window if !caps.windows => Err(BuildError::Unfit {
                device: caps.name,
                lacks: "has no memory windows".into(),
                remedy: "set key_mode = \"region\", or use one that has",
            }),
            KeyMode::Window if !self.names_key_mode && !caps.window_bounds => {
                Err(BuildError::Unfit {
                    device: caps.name,
                    lacks: "is not known to keep a window's key to its bytes".into(),
                    remedy: "name the key mode (EngineBuilder::key_mode): region, or window if the peers are trusted to keep to their grants",
                })
            }
            KeyMode::Window | KeyMode::Region => Ok(()),
        }
    }
}
