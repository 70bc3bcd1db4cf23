//! What a configuration asks for that the machine at hand does not have.

use std::fs;

use keyfence::config::{Config, show_bytes};
use keyfence_mempool::{PageSize, Policy};

use crate::device;
use crate::host::allowed_cpus;

/// A sentence for each thing that engine `index` would miss here.
pub fn missing_here(config: &Config, index: usize) -> Vec<String> {
    let engine = &config.engines[index];
    let allowed = allowed_cpus();
    let cpus = engine.lcores.iter().filter(|cpu| !allowed.contains(cpu));
    let mut missing: Vec<String> = cpus
        .map(|cpu| format!("CPU {cpu}: this process may use {allowed:?}; change engine.lcores, or widen the cpuset"))
        .collect();
    let driver = device::missing(&engine.device);
    missing.extend(driver.map(|why| format!("device {}: {why}", engine.device)));
    missing.extend(hugepages(config));
    missing
}

/// Counts each engine's arena alone: the start of the one before takes its pages.
fn hugepages(config: &Config) -> Option<String> {
    let memory = &config.memory;
    if memory.hugepages != Policy::Require || memory.page_size == PageSize::Base4KiB {
        return None;
    }
    let page_bytes = memory.page_size.bytes() as u64;
    let folder = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page_bytes >> 10);
    let free = fs::read_to_string(format!("{folder}/free_hugepages")).ok();
    let free: u64 = free.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let wanted = memory.arena_bytes.div_ceil(page_bytes);
    (free < wanted).then(|| {
        format!(
            "{wanted} hugepages of {}: {free} are free; reserve more in {folder}/nr_hugepages, or set hugepages = \"prefer\"",
            show_bytes(page_bytes)
        )
    })
}
