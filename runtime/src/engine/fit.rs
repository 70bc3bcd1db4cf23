//! Whether the values of an engine that is built in code are legal and fit together: by the ranges and checks of a file.

use crate::config::{Config, PeerConfig};
use crate::engine::build::{BuildError, EngineBuilder, PeerPlan};
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

    /// R12: who is to be known by a secret has one, and no two are taken for each other.
    pub(super) fn check_peers(&self) -> Result<(), BuildError> {
        for (at, peer) in self.peers.iter().enumerate() {
            if peer.wants_secret && peer.secret.is_none() {
                let peer = peer.name.clone();
                return Err(BuildError::NoSecret { peer });
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
}
