//! What this program can start: the devices and services that a file may name.

use keyfence::config::Catalog;

use crate::device::DEVICES;

/// The default device first.
pub const CATALOG: Catalog<'static> = Catalog {
    devices: DEVICES,
    services: &[],
};
