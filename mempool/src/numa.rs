//! NUMA nodes as sysfs tells them: which exist, which CPU belongs to which.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::ArenaError;

/// The nodes under a sysfs root. Reads files when asked; for start-up and checks only.
#[derive(Debug, Clone)]
pub struct Nodes {
    root: PathBuf,
}

/// An lcore's CPU and the memory it works on are on different nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "CPU {cpu} is on NUMA node {cpu_node}, the memory on node {memory_node}: set numa = {cpu_node}, or choose other lcores"
)]
pub struct NodeMismatch {
    /// The CPU.
    pub cpu: u32,
    /// Its node.
    pub cpu_node: u32,
    /// The memory's node.
    pub memory_node: u32,
}

impl Nodes {
    /// Nodes under `sysfs`, which is `/sys` except in tests.
    pub fn new(sysfs: &Path) -> Nodes {
        Nodes {
            root: sysfs.join("devices/system/node"),
        }
    }

    /// The kernel's list of nodes online, such as `0-1`; `none` on a kernel without NUMA.
    pub fn online(&self) -> String {
        match fs::read_to_string(self.root.join("online")) {
            Ok(list) => list.trim().to_owned(),
            Err(_) => "none".to_owned(),
        }
    }

    /// Fails with a named error unless `node` exists and is online.
    pub fn check(&self, node: u32) -> Result<(), ArenaError> {
        let online = self.online();
        if list_contains(&online, node) && self.root.join(format!("node{node}")).is_dir() {
            return Ok(());
        }
        Err(ArenaError::NoSuchNode { node, online })
    }

    /// The node that `cpu` belongs to, `None` if no node lists it.
    pub fn of_cpu(&self, cpu: u32) -> Option<u32> {
        let nodes = fs::read_dir(&self.root).ok()?;
        nodes.flatten().find_map(|entry| {
            let node = entry
                .file_name()
                .to_str()?
                .strip_prefix("node")?
                .parse()
                .ok()?;
            let cpus = fs::read_to_string(entry.path().join("cpulist")).ok()?;
            list_contains(cpus.trim(), cpu).then_some(node)
        })
    }

    /// Fails if `cpu` is known to belong to another node than `memory_node`.
    pub fn check_cpu(&self, cpu: u32, memory_node: u32) -> Result<(), NodeMismatch> {
        match self.of_cpu(cpu) {
            Some(cpu_node) if cpu_node != memory_node => Err(NodeMismatch {
                cpu,
                cpu_node,
                memory_node,
            }),
            _ => Ok(()),
        }
    }
}

/// Whether a kernel list such as `0-2,5` names `number`.
fn list_contains(list: &str, number: u32) -> bool {
    list.split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<u32>(), last.parse::<u32>()) {
            (Ok(first), Ok(last)) => (first..=last).contains(&number),
            _ => false,
        }
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn kernel_lists_are_ranges_and_single_numbers() {
        for number in [0, 1, 2, 5] {
            assert!(list_contains("0-2,5", number), "{number}");
        }
        for number in [3, 4, 6] {
            assert!(!list_contains("0-2,5", number), "{number}");
        }
        assert!(!list_contains("none", 0));
        assert!(!list_contains("", 0));
    }
}
