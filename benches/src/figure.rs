//! What is reported of one case.

use core::fmt;

/// A median with its quartiles.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Quartiles {
    /// A quarter of the samples are at most this.
    pub q1: f64,
    /// Half of them.
    pub median: f64,
    /// Three quarters.
    pub q3: f64,
}

/// What was measured of one case. Times are nanoseconds an operation.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// The case.
    pub name: String,
    /// Nanoseconds an operation; `None` if every sample was dropped.
    pub ns: Option<Quartiles>,
    /// The same over the cache line's round trip at that time.
    pub to_probe: Option<Quartiles>,
    /// The cache line's round trip while this was measured, in nanoseconds.
    pub probe_ns: Option<Quartiles>,
    /// Samples that count.
    pub samples: usize,
    /// Samples between two probes that disagree.
    pub dropped: usize,
    /// Operations a sample.
    pub operations: u64,
}

impl Quartiles {
    /// Of `values` in any order; between two of them it is interpolated. `None` if there are none.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let at = |quarters: usize| {
            let place = last as f64 * quarters as f64 / 4.0;
            let (low, part) = (place as usize, place.fract());
            let high = sorted[(low + 1).min(last)];
            sorted[low] + part * (high - sorted[low])
        };
        Some(Self {
            q1: at(1),
            median: at(2),
            q3: at(3),
        })
    }

    fn json(of: Option<Self>) -> String {
        of.map_or("null".to_owned(), |of| {
            format!(
                r#"{{"q1":{:.3},"median":{:.3},"q3":{:.3}}}"#,
                of.q1, of.median, of.q3
            )
        })
    }
}

impl Figure {
    /// One object on one line, without an end of line.
    #[must_use]
    pub fn json(&self, bench: &str) -> String {
        format!(
            r#"{{"bench":"{bench}","case":"{}","ns":{},"to_probe":{},"probe_ns":{},"samples":{},"dropped":{},"operations":{}}}"#,
            self.name,
            Quartiles::json(self.ns),
            Quartiles::json(self.to_probe),
            Quartiles::json(self.probe_ns),
            self.samples,
            self.dropped,
            self.operations,
        )
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        let (Some(ns), Some(ratio), Some(probe)) = (self.ns, self.to_probe, self.probe_ns) else {
            let dropped = self.dropped;
            return write!(f, "{name:<28} no figure: {dropped} samples dropped");
        };
        write!(
            f,
            "{name:<28} {:9.2} ns ({:.2} to {:.2})   {:6.2} x probe ({:.2} to {:.2})   probe {:.0} ns, {} samples, {} dropped",
            ns.median,
            ns.q1,
            ns.q3,
            ratio.median,
            ratio.q1,
            ratio.q3,
            probe.median,
            self.samples,
            self.dropped
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_interpolated_between_sorted_samples() {
        let of = |values: &[f64]| Quartiles::of(values).map(|of| (of.q1, of.median, of.q3));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[7.0]), Some((7.0, 7.0, 7.0)));
        assert_eq!(of(&[5.0, 1.0, 4.0, 2.0, 3.0]), Some((2.0, 3.0, 4.0)));
        assert_eq!(of(&[4.0, 1.0]), Some((1.75, 2.5, 3.25)));
    }

    #[test]
    fn a_figure_is_one_object_on_one_line() {
        let three = Quartiles::of(&[1.0, 2.0, 3.0]);
        let figure = Figure {
            name: "write/8".into(),
            ns: three,
            to_probe: three,
            probe_ns: None,
            samples: 3,
            dropped: 1,
            operations: 10,
        };
        let json = figure.json("soft");
        let wanted = r#"{"bench":"soft","case":"write/8","ns":{"q1":1.500,"median":2.000,"q3":2.500},"to_probe":{"q1":1.500,"median":2.000,"q3":2.500},"probe_ns":null,"samples":3,"dropped":1,"operations":10}"#;
        assert_eq!(json, wanted);
    }
}
