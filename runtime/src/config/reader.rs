//! Reads a table of the file by a list of its keys: each key has a name, a kind with its range, and the field that it fills.

use toml::de::{DeTable, DeValue};

use super::report::{Path, Report};
use super::suggest::nearest;
use super::value::{self, Refusal};

/// A value with its place.
pub(super) type Item<'i> = toml::Spanned<DeValue<'i>>;

/// A key with its place.
pub(super) type Name<'i> = toml::Spanned<std::borrow::Cow<'i, str>>;

/// A key of the table that fills a `T`.
pub(super) struct Key<T: 'static> {
    pub(super) name: &'static str,
    is_required: bool,
    pub(super) kind: Kind<T>,
}

/// What a key holds and which field it fills. Ranges are inclusive.
pub(super) enum Kind<T: 'static> {
    Count(u32, u32, fn(&mut T) -> &mut u32),
    Count64(u64, u64, fn(&mut T) -> &mut u64),
    /// Least, most, multiple of.
    Bytes(u64, u64, u64, fn(&mut T) -> &mut u64),
    DurationNs(u64, u64, fn(&mut T) -> &mut u64),
    DurationOrNone(u64, u64, fn(&mut T) -> &mut Option<u64>),
    Number(f64, f64, fn(&mut T) -> &mut f64),
    Flag(fn(&mut T) -> &mut bool),
    Word(&'static [&'static str], fn(&mut T, usize)),
    /// Which texts are legal, the same in words, and what to do with one.
    Text(fn(&str) -> bool, &'static str, fn(&mut T, &str)),
    /// Tables, lists, and whatever else reads its own items.
    Nested(fn(&mut T, &Item<'_>, &Path, &mut Report<'_>)),
}

impl<T> Key<T> {
    /// A key with a default.
    pub(super) const fn optional(name: &'static str, kind: Kind<T>) -> Self {
        Self {
            name,
            is_required: false,
            kind,
        }
    }

    /// A key that the file must say.
    pub(super) const fn required(name: &'static str, kind: Kind<T>) -> Self {
        Self {
            name,
            is_required: true,
            kind,
        }
    }
}

/// Reads `item`, which must be a table, into `target`.
pub(super) fn read_table<T>(
    report: &mut Report<'_>,
    path: &Path,
    item: &Item<'_>,
    keys: &[Key<T>],
    target: &mut T,
) {
    match item.get_ref() {
        DeValue::Table(table) => read_entries(report, path, table, keys, target),
        _ => refuse(
            report,
            path,
            item,
            format!("a table, [{}] with {}", path.shown(), names(keys)),
        ),
    }
}

/// Refuses a value for what it is.
pub(super) fn refuse(report: &mut Report<'_>, path: &Path, item: &Item<'_>, allowed: String) {
    let Refusal { what, allowed } = value::refusal(item.get_ref(), allowed);
    report.refuse_at(path, item.span().start, what, allowed);
}

/// Reads `item`, which must be a list of tables, each into a new `T`.
pub(super) fn read_tables<T: Default>(
    report: &mut Report<'_>,
    path: &Path,
    item: &Item<'_>,
    keys: &[Key<T>],
) -> Vec<T> {
    read_items(report, path, item, |report, path, item| {
        let mut target = T::default();
        read_table(report, path, item, keys, &mut target);
        target
    })
}

/// Reads `item`, which must be a list, each element by `read`.
pub(super) fn read_items<T>(
    report: &mut Report<'_>,
    path: &Path,
    item: &Item<'_>,
    read: impl Fn(&mut Report<'_>, &Path, &Item<'_>) -> T,
) -> Vec<T> {
    let DeValue::Array(array) = item.get_ref() else {
        let allowed = format!("a list of tables, [[{}]]", path.shown());
        refuse(report, path, item, allowed);
        return Vec::new();
    };
    let read = |(index, item): (usize, &Item<'_>)| {
        let path = path.item(index);
        report.met(&path, item.span().start);
        read(report, &path, item)
    };
    array.iter().enumerate().map(read).collect()
}

/// Reads the entries of a table into `target`, refuses those that are not in `keys`, and misses those that must be there.
pub(super) fn read_entries<T>(
    report: &mut Report<'_>,
    path: &Path,
    table: &DeTable<'_>,
    keys: &[Key<T>],
    target: &mut T,
) {
    for (name, _) in read_known(report, path, table, keys, target) {
        refuse_unknown(
            report,
            &path.key(name.get_ref()),
            name,
            keys.iter().map(|key| key.name),
        );
    }
}

/// As [`read_entries`], but leaves the unknown entries to the caller.
pub(super) fn read_known<'t, 'i, T>(
    report: &mut Report<'_>,
    path: &Path,
    table: &'t DeTable<'i>,
    keys: &[Key<T>],
    target: &mut T,
) -> Vec<(&'t Name<'i>, &'t Item<'i>)> {
    let mut unknown = Vec::new();
    for (name, item) in table {
        let Some(key) = keys.iter().find(|key| key.name == name.get_ref()) else {
            unknown.push((name, item));
            continue;
        };
        let path = path.key(name.get_ref());
        report.met(&path, item.span().start);
        read_value(report, &path, item, &key.kind, target);
    }
    for key in keys
        .iter()
        .filter(|key| key.is_required && !table.contains_key(key.name))
    {
        let allowed = format!(
            "it must be there; the keys of this table are {}",
            names(keys)
        );
        report.refuse_missing(&path.key(key.name), allowed);
    }
    unknown
}

/// Reads a list of `least` to `most` scalars, each by `read`; those that are wrong are reported and left out.
pub(super) fn read_list<V>(
    report: &mut Report<'_>,
    path: &Path,
    item: &Item<'_>,
    (least, most): (usize, usize),
    read: impl Fn(&DeValue<'_>) -> Result<V, Refusal>,
) -> Vec<V> {
    let allowed = || format!("a list of {least} to {most} items, as [a, b]");
    let DeValue::Array(array) = item.get_ref() else {
        refuse(report, path, item, allowed());
        return Vec::new();
    };
    if !(least..=most).contains(&array.len()) {
        let what = format!("is a list of {} items", array.len());
        report.refuse_at(path, item.span().start, what, allowed());
    }
    let mut list = Vec::new();
    for item in array {
        match read(item.get_ref()) {
            Ok(value) => list.push(value),
            Err(Refusal { what, allowed }) => {
                report.refuse_at(path, item.span().start, what, allowed)
            }
        }
    }
    list
}

/// Refuses a key that isn't one of `known`, with the word or the table that was probably meant.
pub(super) fn refuse_unknown<'k>(
    report: &mut Report<'_>,
    path: &Path,
    name: &Name<'_>,
    known: impl Iterator<Item = &'k str> + Clone,
) {
    let what = match (
        nearest(name.get_ref(), known.clone()),
        super::keys::tables_of(name.get_ref()),
    ) {
        (Some(word), Some(tables)) => {
            format!("unknown key, did you mean {word}? (it is a key of {tables})")
        }
        (None, Some(tables)) => format!("unknown key here, it is a key of {tables}"),
        (Some(word), None) => format!("unknown key, did you mean {word}?"),
        (None, None) => "unknown key".into(),
    };
    report.refuse_at(
        path,
        name.span().start,
        what,
        known.collect::<Vec<_>>().join(", "),
    );
}

fn read_value<T>(
    report: &mut Report<'_>,
    path: &Path,
    item: &Item<'_>,
    kind: &Kind<T>,
    target: &mut T,
) {
    let read = match kind {
        Kind::Nested(read) => {
            read(target, item, path, report);
            Ok(())
        }
        _ => read_scalar(item.get_ref(), kind, target),
    };
    if let Err(Refusal { what, allowed }) = read {
        report.refuse_at(path, item.span().start, what, allowed);
    }
}

fn read_scalar<T>(value: &DeValue<'_>, kind: &Kind<T>, target: &mut T) -> Result<(), Refusal> {
    match *kind {
        Kind::Count(min, max, field) => {
            let count = value::count(value, min.into(), max.into())?;
            *field(target) = u32::try_from(count).expect("max is an u32");
        }
        Kind::Count64(min, max, field) => *field(target) = value::count(value, min, max)?,
        Kind::Bytes(min, max, step, field) => *field(target) = value::bytes(value, min, max, step)?,
        Kind::DurationNs(min, max, field) => *field(target) = value::duration_ns(value, min, max)?,
        Kind::DurationOrNone(min, max, field) => {
            *field(target) = value::optional_duration_ns(value, min, max)?
        }
        Kind::Number(min, max, field) => *field(target) = value::number(value, min, max)?,
        Kind::Flag(field) => *field(target) = value::flag(value)?,
        Kind::Word(words, set) => set(target, value::word(value, words)?),
        Kind::Text(is_legal, allowed, set) => set(target, value::text(value, is_legal, allowed)?),
        Kind::Nested(_) => unreachable!("nested values read themselves"),
    }
    Ok(())
}

fn names<T>(keys: &[Key<T>]) -> String {
    keys.iter()
        .map(|key| key.name)
        .collect::<Vec<_>>()
        .join(", ")
}
