//! An RDMA adapter.

use keyfence::pmd::verbs::{Adapter, VerbsConfig, VerbsError};

use super::{ProbeArgs, look};
use crate::report::Finished;

/// Probes the adapter that the command line names.
pub fn probe(args: &ProbeArgs, json: bool) -> Result<Finished, String> {
    let config = VerbsConfig {
        device: Some(args.device.clone()),
        port: args.port,
        gid_index: args.gid_index,
        ..VerbsConfig::default()
    };
    let adapter = Adapter::find(&config, args.address).map_err(|error| match error {
        VerbsError::NoAddress { .. } => format!("{error}: --address IP"),
        error => error.to_string(),
    })?;
    look(args, json, &adapter)
}
