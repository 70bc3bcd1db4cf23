//! Which device the engines of a command get, and how they reach each other through it.

mod soft;
#[cfg(feature = "verbs")]
mod verbs;

use std::fmt;
use std::net::IpAddr;

use clap::{Args, ValueEnum};
use keyfence::EngineBuilder;
use keyfence::config::{Config, KeyMode, VerbsConfig};
use keyfence::pmd::Device;

/// Devices by their names in a configuration, the default first.
pub const DEVICES: &[&str] = &["soft", "verbs"];

/// Arguments of a command that makes two engines by itself.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// The device between the two engines
    #[arg(long, value_enum, default_value = "soft")]
    device: Kind,
    /// With --device verbs, the adapter, such as mlx5_0; the only one there is if left out
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// With --device verbs, the address at which the engines connect: one of the adapter's, and the first of two free ports
    #[arg(long, value_name = "HOST:PORT", required_if_eq("device", "verbs"))]
    address: Option<String>,
    /// With --device verbs, how a grant's key is made
    #[arg(long, value_enum, default_value = "auto")]
    key_mode: Mode,
}

/// Devices on a command line.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A software adapter
    Soft,
    /// An RDMA adapter, through libibverbs
    Verbs,
}

/// Key modes on a command line.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// What a self-test of the adapter finds to be safe
    Auto,
    /// A memory window a grant
    Window,
    /// A memory region a grant
    Region,
}

/// A device of this program's, chosen and not yet opened.
#[derive(Clone, Debug)]
pub enum Choice {
    /// A software adapter for each engine, on one fabric.
    Soft,
    /// An RDMA adapter, opened for each engine.
    Verbs {
        /// How.
        settings: VerbsConfig,
        /// An address of it, for its self-test.
        host: Option<IpAddr>,
    },
}

/// What is done with engines, whatever their device.
pub trait OnDevice {
    /// What comes of it.
    type Done;

    /// Whether a signal asks for an end before it has begun.
    #[cfg_attr(
        not(feature = "verbs"),
        expect(dead_code, reason = "only an adapter takes long to be opened")
    )]
    fn interrupted(&self) -> bool;

    /// Does it, with a device for each builder.
    fn on<D: Device>(self, builders: Vec<EngineBuilder>, devices: Vec<D>) -> Self::Done;
}

impl Choice {
    /// The device of a configuration's engines.
    ///
    /// # Errors
    /// If they have not all the same.
    pub fn of_config(config: &Config) -> Result<Self, String> {
        let first = &config.engines[0];
        if let Some(other) = config.engines.iter().find(|e| e.device != first.device) {
            return Err(format!(
                "engine {} has device {:?}, engine {} {:?}; engines that are to meet have one kind of device",
                first.name, first.device, other.name, other.device
            ));
        }
        Ok(match first.device.as_str() {
            "verbs" => Self::Verbs {
                settings: config.verbs.clone(),
                host: first
                    .listen
                    .as_ref()
                    .and_then(|at| host_of(&at.to_string())),
            },
            _ => Self::Soft,
        })
    }

    /// Opens a device for each engine, and does something with them.
    ///
    /// # Errors
    /// Which device could not be opened, and why.
    pub fn open<U: OnDevice>(
        &self,
        builders: Vec<EngineBuilder>,
        user: U,
    ) -> anyhow::Result<U::Done> {
        match self {
            Self::Soft => {
                let devices = soft::devices(builders.len())?;
                Ok(user.on(builders, devices))
            }
            #[cfg(feature = "verbs")]
            Self::Verbs { settings, host } => {
                let interrupted = || user.interrupted();
                let (builders, devices) = verbs::devices(settings, *host, builders, &interrupted)?;
                Ok(user.on(builders, devices))
            }
            #[cfg(not(feature = "verbs"))]
            Self::Verbs { settings, host } => {
                let adapter = settings.device.as_deref().unwrap_or("the only one");
                let host = host.map_or_else(String::new, |host| format!(" at {host}"));
                anyhow::bail!("device verbs, adapter {adapter}{host}: {NO_VERBS}")
            }
        }
    }
}

/// What of a device this program was built without, and what to do.
pub fn missing(device: &str) -> Option<&'static str> {
    (device == "verbs" && !cfg!(feature = "verbs")).then_some(NO_VERBS)
}

const NO_VERBS: &str = "this program was built without RDMA adapters; build it with `cargo build --release --features verbs`, which needs cmake and libclang";

/// Its name in a configuration and in reports.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Soft => "soft",
            Self::Verbs { .. } => "verbs",
        })
    }
}

impl DeviceArgs {
    /// The device.
    pub fn choice(&self) -> Choice {
        match self.device {
            Kind::Soft => Choice::Soft,
            Kind::Verbs => Choice::Verbs {
                settings: VerbsConfig {
                    device: self.adapter.clone(),
                    key_mode: match self.key_mode {
                        Mode::Auto => None,
                        Mode::Window => Some(KeyMode::Window),
                        Mode::Region => Some(KeyMode::Region),
                    },
                    ..VerbsConfig::default()
                },
                host: self.address.as_deref().and_then(host_of),
            },
        }
    }

    /// Makes two engines of one lcore each other's peers.
    ///
    /// # Errors
    /// What is wrong with the address.
    pub fn join(&self, builders: [EngineBuilder; 2]) -> Result<Vec<EngineBuilder>, String> {
        if self.device == Kind::Soft && (self.adapter.is_some() || self.address.is_some()) {
            return Err("--adapter and --address are of an RDMA adapter; give --device verbs, or leave them out".into());
        }
        let names = [1, 0].map(|at| builders[at].name().to_owned());
        let join: Box<dyn Fn(EngineBuilder, String, usize) -> EngineBuilder> = match self.device {
            Kind::Soft => {
                Box::new(|builder, peer, _| builder.peer(&peer, &format!("local:{peer}"), 1))
            }
            Kind::Verbs => {
                let ends = ends(self.address.as_deref().unwrap_or_default())?;
                let secret = crate::host::fresh_secret().map_err(|error| format!("{error:#}"))?;
                Box::new(move |builder, peer, at| {
                    let builder = builder.listen(&ends[at]);
                    builder.peer_with_secret(&peer, &ends[1 - at], 1, secret.clone())
                })
            }
        };
        let sides = builders.into_iter().zip(names).zip(0..);
        Ok(sides
            .map(|((builder, peer), at)| join(builder, peer, at))
            .collect())
    }
}

/// The IP address in `HOST:PORT`, also with the scheme before it; `None` for a name.
fn host_of(address: &str) -> Option<IpAddr> {
    let place = address.strip_prefix("rdma:").unwrap_or(address);
    let (host, _) = place.rsplit_once(':')?;
    host.trim_matches(['[', ']']).parse().ok()
}

/// The addresses of both ends: the given one, and the next port.
fn ends(address: &str) -> Result<[String; 2], String> {
    let wrong = || {
        format!(
            "--address {address:?}; allowed: HOST:PORT with an address of the adapter's and a port of 1 to 65534"
        )
    };
    let place = address.strip_prefix("rdma:").unwrap_or(address);
    let (host, port) = place.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    let next = port.checked_add(1).filter(|_| port > 0 && !host.is_empty());
    let next = next.ok_or_else(wrong)?;
    Ok([port, next].map(|port| format!("rdma:{host}:{port}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_host() {
        for (address, host) in [
            ("10.9.9.1:7471", Some("10.9.9.1")),
            ("rdma:10.9.9.1:7471", Some("10.9.9.1")),
            ("rdma:[2001:db8::1]:7471", Some("2001:db8::1")),
            ("storage:7471", None),
            ("", None),
        ] {
            let found = host_of(address).map(|host| host.to_string());
            assert_eq!(found.as_deref(), host, "{address}");
        }
    }

    #[test]
    fn an_address_gives_two_ports() {
        let found = ends("10.9.9.1:7471").expect("legal");
        assert_eq!(found, ["rdma:10.9.9.1:7471", "rdma:10.9.9.1:7472"]);
        assert_eq!(ends("rdma:10.9.9.1:7471").expect("legal"), found);
        let found = ends("[fe80::1]:1").expect("legal");
        assert_eq!(found[1], "rdma:[fe80::1]:2");
        for bad in [
            "",
            "host",
            ":1",
            "host:0",
            "host:65535",
            "host:x",
            "host:-1",
        ] {
            assert!(ends(bad).unwrap_err().contains("1 to 65534"), "{bad:?}");
        }
    }
}
