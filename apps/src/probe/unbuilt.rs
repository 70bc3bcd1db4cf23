//! A build without the driver of RDMA adapters.

use super::ProbeArgs;
use crate::report::Finished;

/// Says how to get one with it.
pub fn probe(args: &ProbeArgs, _json: bool) -> Result<Finished, String> {
    Err(format!(
        "--device {}: this build has no driver of RDMA adapters; build it with `cargo build --release --features verbs` (needs cmake and libclang), or \
         probe the software adapter with `--device soft`",
        args.device
    ))
}
