//! The configuration: what is read, what is refused, and where the refusal points.

mod cross;
mod examples;
mod folder;
mod fuzz;
mod refusals;
mod secrets;
mod topology;

use keyfence::config::{Catalog, Config, ConfigError, OptionKind, ServiceKind};

/// A device and a service, so that the files of these tests have something to name.
const CATALOG: Catalog<'static> = Catalog {
    devices: &["soft", "verbs"],
    services: &[ServiceKind {
        name: "echo",
        options: &[
            ("burst", OptionKind::Count(1, 64)),
            ("chunk", OptionKind::Bytes(1, 1 << 20)),
            ("every", OptionKind::DurationNs(1, 1_000_000)),
            ("loud", OptionKind::Flag),
            ("greeting", OptionKind::Text),
        ],
    }],
};

/// The least that a file must say.
const LEAST: &str = "[[engine]]\nname = \"a\"\nlcores = [0]\n";

fn parse(source: &str) -> Result<Config, Vec<ConfigError>> {
    Config::parse("f.toml", source, CATALOG).map_err(|errors| errors.as_slice().to_vec())
}

fn read(source: &str) -> Config {
    parse(source).unwrap_or_else(|errors| panic!("{source}\nis refused: {errors:#?}"))
}

fn errors_of(source: &str) -> Vec<ConfigError> {
    parse(source)
        .err()
        .unwrap_or_else(|| panic!("{source}\nis taken"))
}

/// The only error of a file.
fn error_of(source: &str) -> ConfigError {
    let errors = errors_of(source);
    assert_eq!(errors.len(), 1, "{source}\n{errors:#?}");
    errors[0].clone()
}

/// The place of the only occurrence of `text`, as line and column.
fn place_of(source: &str, text: &str) -> (usize, usize) {
    let offset = source
        .find(text)
        .unwrap_or_else(|| panic!("{text:?} is not in\n{source}"));
    let before = &source[..offset];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}
