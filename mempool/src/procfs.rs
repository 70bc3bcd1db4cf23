//! What `/proc` says about this machine's and this process's memory.

use std::fs;

/// `MemAvailable` in bytes; `None` where `/proc/meminfo` does not have it.
pub(crate) fn available_bytes() -> Option<u64> {
    meminfo_bytes("MemAvailable")
}

/// Size of the kernel's default hugepage; `None` on a kernel without hugepages.
pub(crate) fn default_hugepage_bytes() -> Option<u64> {
    meminfo_bytes("Hugepagesize")
}

/// Bytes of transparent hugepages in the mapping that contains `address`.
pub(crate) fn transparent_bytes(address: u64) -> u64 {
    fs::read_to_string("/proc/self/smaps")
        .ok()
        .and_then(|smaps| anon_hugepage_bytes(&smaps, address))
        .unwrap_or(0)
}

fn meminfo_bytes(name: &str) -> Option<u64> {
    field_bytes(&fs::read_to_string("/proc/meminfo").ok()?, name)
}

fn anon_hugepage_bytes(smaps: &str, address: u64) -> Option<u64> {
    let mut lines = smaps.lines();
    lines.find(|line| range_contains(line, address))?;
    let rest = lines
        .take_while(|line| !line.starts_with("VmFlags"))
        .find(|line| line.starts_with("AnonHugePages"))?;
    field_bytes(rest, "AnonHugePages")
}

fn range_contains(line: &str, address: u64) -> bool {
    let range = line
        .split(' ')
        .next()
        .and_then(|range| range.split_once('-'));
    let Some((start, end)) = range else {
        return false;
    };
    match (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16)) {
        (Ok(start), Ok(end)) => (start..end).contains(&address),
        _ => false,
    }
}

/// The value of a line `name: N kB`.
fn field_bytes(text: &str, name: &str) -> Option<u64> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_read_in_bytes() {
        assert_eq!(
            field_bytes("MemFree:  7 kB\nHugepagesize:    2048 kB\n", "Hugepagesize"),
            Some(2 << 20)
        );
        assert_eq!(field_bytes("Hugepagesize: many kB\n", "Hugepagesize"), None);
        assert_eq!(field_bytes("", "Hugepagesize"), None);
    }

    #[test]
    fn hugepages_are_those_of_the_mapping_asked_about() {
        let smaps = "1000-3000 rw-p 0 00:00 0\nAnonHugePages: 0 kB\nVmFlags: rd\n\
                     200000-600000 rw-p 0 00:00 0\nSize: 4096 kB\nAnonHugePages:  4096 kB\nVmFlags: rd\n";
        assert_eq!(anon_hugepage_bytes(smaps, 0x20_0000), Some(4 << 20));
        assert_eq!(anon_hugepage_bytes(smaps, 0x2fff), Some(0));
        assert_eq!(anon_hugepage_bytes(smaps, 0x60_0000), None);
    }
}
