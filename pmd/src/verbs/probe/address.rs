//! An IP address of an adapter's port, from its GID table.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

/// The address that the port's GID table has: an IPv4 one if there is one. None on InfiniBand, whose GIDs are no IP addresses.
pub(super) fn of_port(adapter: &str, port: u8) -> Option<IpAddr> {
    let port = Path::new("/sys/class/infiniband")
        .join(adapter)
        .join(format!("ports/{port}"));
    let layer = fs::read_to_string(port.join("link_layer")).ok()?;
    if layer.trim() != "Ethernet" {
        return None;
    }
    let entries = (0..256).map(|index| fs::read_to_string(port.join(format!("gids/{index}"))));
    // An entry that is not used can't be read, or is zeros.
    let addresses = entries.map_while(Result::ok).filter_map(|gid| of_gid(&gid));
    best(addresses)
}

/// The address that a GID stands for, if a connection manager can connect to it by that alone.
fn of_gid(gid: &str) -> Option<IpAddr> {
    let address: Ipv6Addr = gid.trim().parse().ok()?;
    if let Some(v4) = address.to_ipv4_mapped() {
        return (!v4.is_unspecified()).then_some(IpAddr::V4(v4));
    }
    // A link-local one needs its interface named, too.
    let whole = !address.is_unspecified() && !address.is_unicast_link_local();
    whole.then_some(IpAddr::V6(address))
}

fn best(addresses: impl Iterator<Item = IpAddr>) -> Option<IpAddr> {
    let all: Vec<_> = addresses.collect();
    let v4 = all.iter().find(|address| address.is_ipv4());
    v4.or(all.first()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_stands_for_an_address_or_for_none() {
        let gid = |text: &str| of_gid(text).map(|address| address.to_string());
        assert_eq!(
            gid("0000:0000:0000:0000:0000:ffff:0a09:0901\n").as_deref(),
            Some("10.9.9.1")
        );
        assert_eq!(
            gid("2001:0db8:0000:0000:0000:0000:0000:0001\n").as_deref(),
            Some("2001:db8::1")
        );
        assert_eq!(gid("fe80:0000:0000:0000:5054:00ff:fe00:0001\n"), None);
        assert_eq!(gid("0000:0000:0000:0000:0000:0000:0000:0000\n"), None);
        assert_eq!(gid("0000:0000:0000:0000:0000:ffff:0000:0000\n"), None);
        assert_eq!(gid(""), None);
    }

    #[test]
    fn ipv4_comes_first() {
        let of = |texts: &[&str]| best(texts.iter().map(|text| text.parse().expect("an address")));
        assert_eq!(
            of(&["2001:db8::1", "10.9.9.1"]).map(|address| address.to_string()),
            Some("10.9.9.1".into())
        );
        assert!(of(&["2001:db8::1"]).is_some_and(|address| address.is_ipv6()));
        assert_eq!(of(&[]), None);
    }
}
