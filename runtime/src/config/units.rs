//! Sizes and durations as people write them. Each text has one meaning, and each value one shortest text.

const BYTE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];
const TIME_UNITS: [(&str, u64); 4] = [
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Why a text is no size or no duration.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnitError {
    /// It doesn't start with an integer, or has a sign, a fraction or a space.
    #[error("is no whole number with a unit")]
    NoNumber,
    /// There is a number and nothing else.
    #[error("has no unit")]
    NoUnit,
    /// The unit isn't known; units are case-sensitive.
    #[error("has the unknown unit {0:?}")]
    UnknownUnit(String),
    /// The value doesn't fit in 64 bits.
    #[error("is more than 64 bits can hold")]
    TooLarge,
}

/// Bytes of a size such as `64MiB` (a power of 1024), `64MB` (of 1000) or `64B`.
///
/// ```
/// use keyfence::config::parse_bytes;
/// assert_eq!(parse_bytes("64MiB"), Ok(64 * 1024 * 1024));
/// assert_eq!(parse_bytes("64MB"), Ok(64_000_000));
/// assert!(parse_bytes("64").is_err() && parse_bytes("64 MiB").is_err() && parse_bytes("1.5GiB").is_err());
/// ```
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    parse(text, &BYTE_UNITS)
}

/// Nanoseconds of a duration such as `20ms`; units are `ns`, `us`, `ms` and `s`.
///
/// ```
/// use keyfence::config::parse_duration_ns;
/// assert_eq!(parse_duration_ns("20ms"), Ok(20_000_000));
/// ```
pub fn parse_duration_ns(text: &str) -> Result<u64, UnitError> {
    parse(text, &TIME_UNITS)
}

/// The shortest exact text of a size, which [`parse_bytes`] reads back.
#[must_use]
pub fn show_bytes(bytes: u64) -> String {
    show(bytes, &BYTE_UNITS)
}

/// The shortest exact text of a duration, which [`parse_duration_ns`] reads back.
#[must_use]
pub fn show_ns(ns: u64) -> String {
    show(ns, &TIME_UNITS)
}

fn parse(text: &str, units: &[(&str, u64)]) -> Result<u64, UnitError> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() || unit.starts_with(['.', ' ', '_', ',']) {
        return Err(UnitError::NoNumber);
    }
    if unit.is_empty() {
        return Err(UnitError::NoUnit);
    }
    let Some((_, scale)) = units.iter().find(|(name, _)| *name == unit) else {
        return Err(UnitError::UnknownUnit(unit.chars().take(16).collect()));
    };
    // Nothing but digits is left, so the only failure is too many of them.
    let number: u64 = number.parse().map_err(|_| UnitError::TooLarge)?;
    number.checked_mul(*scale).ok_or(UnitError::TooLarge)
}

fn show(value: u64, units: &[(&str, u64)]) -> String {
    let fitting = units
        .iter()
        .filter(|(_, scale)| value >= *scale && value.is_multiple_of(*scale));
    let fewest_digits = fitting.min_by_key(|(_, scale)| value / scale);
    match fewest_digits {
        Some((unit, scale)) => format!("{}{unit}", value / scale),
        // Only 0 has no fitting unit; the last one is the unit of 1.
        None => format!("0{}", units.last().map_or("", |(unit, _)| unit)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn b45_one_meaning_each() {
        assert_eq!(parse_bytes("64MB"), Ok(64_000_000));
        assert_eq!(parse_bytes("64MiB"), Ok(67_108_864));
        assert_eq!(parse_bytes("0B"), Ok(0));
        assert_eq!(parse_bytes("43"), Err(UnitError::NoUnit));
        assert_eq!(
            parse_bytes("64mb"),
            Err(UnitError::UnknownUnit("mb".into()))
        );
        for text in ["", "-1B", "+1B", "1 MiB", "1.5MiB", "1_0B", " 1B", "MiB"] {
            assert_eq!(parse_bytes(text), Err(UnitError::NoNumber), "{text:?}");
        }
        assert_eq!(parse_bytes("18446744073709551615B"), Ok(u64::MAX));
        assert_eq!(
            parse_bytes("18446744073709551616B"),
            Err(UnitError::TooLarge)
        );
        assert_eq!(parse_bytes("16777216TiB"), Err(UnitError::TooLarge));
    }

    #[test]
    fn durations_have_four_units() {
        assert_eq!(parse_duration_ns("3ns"), Ok(3));
        assert_eq!(parse_duration_ns("3us"), Ok(3_000));
        assert_eq!(parse_duration_ns("3s"), Ok(3_000_000_000));
        assert_eq!(
            parse_duration_ns("3m"),
            Err(UnitError::UnknownUnit("m".into()))
        );
    }

    #[test]
    fn shown_in_the_unit_with_the_fewest_digits() {
        assert_eq!(show_bytes(64 << 20), "64MiB");
        assert_eq!(show_bytes(64_000_000), "64MB");
        assert_eq!(show_bytes(43), "43B");
        assert_eq!((show_bytes(0), show_ns(0)), ("0B".into(), "0ns".into()));
        assert_eq!(show_ns(1_500_000_000), "1500ms");
    }

    proptest! {
        #[test]
        fn shown_values_are_read_back(value: u64) {
            prop_assert_eq!(parse_bytes(&show_bytes(value)), Ok(value));
            prop_assert_eq!(parse_duration_ns(&show_ns(value)), Ok(value));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = (parse_bytes(&text), parse_duration_ns(&text));
        }
    }
}
