//! One value of the file: what it must be, and what it is.

use toml::de::DeValue;

use super::units::{parse_bytes, parse_duration_ns, show_bytes, show_ns};

/// What is wrong with a value, and what is allowed.
pub(super) struct Refusal {
    pub(super) what: String,
    pub(super) allowed: String,
}

/// An integer from `min` to `max`.
pub(super) fn count(value: &DeValue<'_>, min: u64, max: u64) -> Result<u64, Refusal> {
    match value {
        DeValue::Integer(_) => in_range(integer(value), min, max),
        _ => None,
    }
    .ok_or_else(|| refusal(value, allowed_count(min, max)))
}

/// The range of [`count`] in words.
pub(super) fn allowed_count(min: u64, max: u64) -> String {
    format!("an integer from {min} to {max}")
}

/// A number from `min` to `max`, with a fraction or without.
pub(super) fn number(value: &DeValue<'_>, min: f64, max: f64) -> Result<f64, Refusal> {
    let text = match value {
        DeValue::Float(float) => float.as_str().to_owned(),
        DeValue::Integer(_) => integer(value).map(|n| n.to_string()).unwrap_or_default(),
        _ => String::new(),
    };
    let number: Option<f64> = text.parse().ok();
    // A range contains no NaN.
    number
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| refusal(value, allowed_number(min, max)))
}

/// The range of [`number`] in words.
pub(super) fn allowed_number(min: f64, max: f64) -> String {
    format!("a number from {min} to {max}")
}

/// A size from `min` to `max` bytes that is a multiple of `step`.
pub(super) fn bytes(value: &DeValue<'_>, min: u64, max: u64, step: u64) -> Result<u64, Refusal> {
    let allowed = || allowed_bytes(min, max, step);
    let bytes = match value {
        DeValue::Integer(_) => integer(value),
        DeValue::String(text) => match parse_bytes(text) {
            Ok(bytes) => Some(i128::from(bytes)),
            Err(error) => return Err(unit_refusal(value, &error.to_string(), allowed())),
        },
        _ => None,
    };
    in_range(bytes, min, max)
        .filter(|bytes| bytes % step == 0)
        .ok_or_else(|| refusal(value, allowed()))
}

/// The range of [`bytes`] in words.
pub(super) fn allowed_bytes(min: u64, max: u64, step: u64) -> String {
    let multiple = if step > 1 {
        format!("a multiple of {step} bytes ")
    } else {
        "a size ".into()
    };
    let (min, max) = (show_bytes(min), show_bytes(max));
    format!(
        "{multiple}from \"{min}\" to \"{max}\" (units B, KiB, MiB, GiB, TiB, KB, MB, GB, TB; an integer is bytes)"
    )
}

/// A duration from `min` to `max` ns.
pub(super) fn duration_ns(value: &DeValue<'_>, min: u64, max: u64) -> Result<u64, Refusal> {
    let allowed = || allowed_duration(min, max);
    match value {
        DeValue::String(text) => match parse_duration_ns(text) {
            Ok(ns) => in_range(Some(i128::from(ns)), min, max),
            Err(error) => return Err(unit_refusal(value, &error.to_string(), allowed())),
        },
        _ => None,
    }
    .ok_or_else(|| refusal(value, allowed()))
}

/// The range of [`duration_ns`] in words.
pub(super) fn allowed_duration(min: u64, max: u64) -> String {
    let (min, max) = (show_ns(min), show_ns(max));
    format!("a duration from \"{min}\" to \"{max}\" (units ns, us, ms, s)")
}

/// A duration, or `"none"`.
pub(super) fn optional_duration_ns(
    value: &DeValue<'_>,
    min: u64,
    max: u64,
) -> Result<Option<u64>, Refusal> {
    if matches!(value, DeValue::String(text) if text == "none") {
        return Ok(None);
    }
    duration_ns(value, min, max)
        .map(Some)
        .map_err(|refusal| Refusal {
            allowed: format!("\"none\", or {}", refusal.allowed),
            ..refusal
        })
}

/// `true` or `false`.
pub(super) fn flag(value: &DeValue<'_>) -> Result<bool, Refusal> {
    value
        .as_bool()
        .ok_or_else(|| refusal(value, "true or false".into()))
}

/// The index of one of `words`.
pub(super) fn word(value: &DeValue<'_>, words: &[&str]) -> Result<usize, Refusal> {
    let found = value
        .as_str()
        .and_then(|text| words.iter().position(|word| *word == text));
    found.ok_or_else(|| refusal(value, list_of_words(words)))
}

/// A text that `is_legal` takes.
pub(super) fn text<'v>(
    value: &'v DeValue<'_>,
    is_legal: fn(&str) -> bool,
    allowed: &str,
) -> Result<&'v str, Refusal> {
    let text = value.as_str().filter(|text| is_legal(text));
    text.ok_or_else(|| refusal(value, allowed.into()))
}

/// `"a", "b" or "c"`.
pub(super) fn list_of_words(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    match quoted.as_slice() {
        [] => "nothing".into(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// The refusal of a value for what it is.
pub(super) fn refusal(value: &DeValue<'_>, allowed: String) -> Refusal {
    Refusal {
        what: format!("is {}", describe(value)),
        allowed,
    }
}

fn unit_refusal(value: &DeValue<'_>, why: &str, allowed: String) -> Refusal {
    Refusal {
        what: format!("is {}, which {why}", describe(value)),
        allowed,
    }
}

/// The value in words, on one line and not too long.
fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => describe_text(text),
        DeValue::Integer(number) => format!("the integer {}", shorten(&number.to_string())),
        DeValue::Float(number) => format!("the number {}", shorten(number.as_str())),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(_) => "a date or time".into(),
        DeValue::Array(_) => "a list".into(),
        DeValue::Table(_) => "a table".into(),
    }
}

/// A text in words.
pub(super) fn describe_text(text: &str) -> String {
    format!("the string {:?}", shorten(text))
}

fn shorten(text: &str) -> String {
    text.chars().take(40).collect()
}

/// The value of an integer; `None` beyond 128 bits.
fn integer(value: &DeValue<'_>) -> Option<i128> {
    let DeValue::Integer(number) = value else {
        return None;
    };
    i128::from_str_radix(number.as_str(), number.radix()).ok()
}

fn in_range(value: Option<i128>, min: u64, max: u64) -> Option<u64> {
    let value = u64::try_from(value?).ok()?;
    (min..=max).contains(&value).then_some(value)
}
