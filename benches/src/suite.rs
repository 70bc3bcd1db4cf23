//! The cases of one benchmark, measured in turn with the probe between the turns.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::figure::{Figure, Quartiles};
use crate::probe;

/// Two probes agree if the larger is at most this many times the smaller.
const AGREEMENT: f64 = 1.1;
/// Turns a sample that is wanted, before what there is must do.
const PATIENCE: usize = 4;

/// One thing to measure.
pub struct Case {
    name: String,
    operations: u64,
    run: Box<dyn FnMut(u64) -> Duration>,
}

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Samples of each case that count; dropped ones are repeated, three times as many at most.
    pub samples: usize,
    /// About how long one sample takes.
    pub sample_time: Duration,
}

/// A benchmark: its name, its cases, and what its command line asks for.
pub struct Suite {
    name: &'static str,
    cases: Vec<Case>,
    plan: Plan,
    filter: Option<String>,
    record: bool,
}

impl Plan {
    /// For reading.
    pub const FULL: Self = Self {
        samples: 31,
        sample_time: Duration::from_millis(3),
    };
    /// For tests: shows that the cases work.
    pub const SMALL: Self = Self {
        samples: 1,
        sample_time: Duration::from_micros(10),
    };
}

/// Calls and times a closure of one call.
pub fn repeated(mut call: impl FnMut()) -> impl FnMut(u64) -> Duration {
    move |calls| {
        let start = Instant::now();
        for _ in 0..calls {
            call();
        }
        start.elapsed()
    }
}

impl Case {
    /// `run` makes as many calls as it is told, of `operations` operations each, and says how long they took.
    pub fn new(name: &str, operations: u64, run: impl FnMut(u64) -> Duration + 'static) -> Self {
        Self {
            name: name.to_owned(),
            operations,
            run: Box::new(run),
        }
    }

    /// Calls that take about `time`, found by doubling; this warms up, too. Thrice in a row, since a thread that was put aside makes any
    /// number of calls look long enough.
    fn calibrate(&mut self, time: Duration) -> u64 {
        let mut calls = 1;
        let is_enough = |case: &mut Self, calls| (case.run)(calls) >= time / 2;
        while calls < 1 << 40 && !(0..3).all(|_| is_enough(self, calls)) {
            calls *= 2;
        }
        calls
    }

    fn ns(&mut self, calls: u64) -> f64 {
        (self.run)(calls).as_nanos() as f64 / (calls * self.operations) as f64
    }
}

/// Measures the cases in turn: all of them, the probe, all of them, the probe. What lies between two probes that disagree is dropped.
pub fn measure(cases: &mut [Case], plan: Plan, probe: &mut dyn FnMut() -> f64) -> Vec<Figure> {
    let time = plan.sample_time;
    let calls: Vec<u64> = cases.iter_mut().map(|case| case.calibrate(time)).collect();
    let mut samples = vec![Vec::new(); cases.len()];
    let (mut probes, mut dropped) = (Vec::new(), 0);
    let mut before = probe();
    while probes.len() < plan.samples && probes.len() + dropped < PATIENCE * plan.samples {
        let turn = cases.iter_mut().zip(&calls);
        let turn: Vec<f64> = turn.map(|(case, calls)| case.ns(*calls)).collect();
        let after = probe();
        if before.max(after) <= AGREEMENT * before.min(after) {
            probes.push((before + after) / 2.0);
            let turn = turn.into_iter().zip(&mut samples);
            turn.for_each(|(ns, samples)| samples.push(ns));
        } else {
            dropped += 1;
        }
        before = after;
    }
    let figures = cases.iter().zip(samples).zip(calls);
    let figure = |((case, ns), calls): ((&Case, Vec<f64>), u64)| {
        let ratios: Vec<f64> = ns
            .iter()
            .zip(&probes)
            .map(|(ns, probe)| ns / probe)
            .collect();
        Figure {
            name: case.name.clone(),
            ns: Quartiles::of(&ns),
            to_probe: Quartiles::of(&ratios),
            probe_ns: Quartiles::of(&probes),
            samples: ns.len(),
            dropped,
            operations: calls * case.operations,
        }
    };
    figures.map(figure).collect()
}

impl Suite {
    /// A benchmark as its command line asks for. `--bench`, which cargo passes, measures; without it everything runs small. `--record`
    /// appends the figures to `results/NAME.ndjson`; a word measures only the cases that have it in their name.
    #[must_use]
    pub fn new(name: &'static str, arguments: impl Iterator<Item = String>) -> Self {
        let mut suite = Self {
            name,
            cases: Vec::new(),
            plan: Plan::SMALL,
            filter: None,
            record: false,
        };
        for argument in arguments {
            match argument.as_str() {
                "--bench" => suite.plan = Plan::FULL,
                "--record" => suite.record = true,
                // Of cargo's own harness, which this is not.
                option if option.starts_with('-') => {}
                word => suite.filter = Some(word.to_owned()),
            }
        }
        suite
    }

    /// Adds a case: see [`Case::new`].
    pub fn case(
        &mut self,
        name: &str,
        operations: u64,
        run: impl FnMut(u64) -> Duration + 'static,
    ) {
        let wanted = self.filter.as_ref().is_none_or(|word| name.contains(word));
        if wanted {
            self.cases.push(Case::new(name, operations, run));
        }
    }

    /// Measures, writes a line a figure to `out`, and records them if asked to.
    ///
    /// # Errors
    /// If `out` or the file of results cannot be written, or if too many samples were dropped for a record.
    pub fn run(mut self, out: &mut dyn Write) -> io::Result<()> {
        let mut probe = probe::cache_line_round_trip_ns;
        let figures = measure(&mut self.cases, self.plan, &mut probe);
        for figure in &figures {
            writeln!(out, "{} {figure}", self.name)?;
        }
        if self.record {
            // Cargo sets it for what it runs.
            let crate_dir = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
            let results = crate_dir.unwrap_or_default().join("results");
            record(&results, self.name, self.plan, &figures)?;
        }
        Ok(())
    }
}

/// Appends the figures, or none if one has fewer samples than it should: then something else had the cores.
fn record(results: &Path, bench: &str, plan: Plan, figures: &[Figure]) -> io::Result<()> {
    if let Some(short) = figures.iter().find(|figure| figure.samples < plan.samples) {
        let (kept, dropped, wanted) = (short.samples, short.dropped, plan.samples);
        return Err(io::Error::other(format!(
            "nothing is recorded: {kept} of {wanted} samples lie between probes that agree, {dropped} were dropped; leave two cores idle"
        )));
    }
    fs::create_dir_all(results)?;
    let path = results.join(format!("{bench}.ndjson"));
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    for figure in figures {
        writeln!(file, "{}", figure.json(bench))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// Cases that write down when they are called and always take the same time, and a probe with these answers.
    fn played(probes: &[f64], samples: usize) -> (Vec<Figure>, String) {
        let log = Rc::new(RefCell::new(String::new()));
        let case = |name: &'static str, ns| {
            let log = Rc::clone(&log);
            Case::new(name, 2, move |calls| {
                log.borrow_mut().push_str(name);
                Duration::from_nanos(ns * calls)
            })
        };
        let mut cases = [case("A", 100), case("B", 300)];
        let mut answers = probes.iter();
        let plan = Plan {
            samples,
            sample_time: Duration::from_nanos(100),
        };
        let mut probe = || {
            log.borrow_mut().push('p');
            *answers.next().expect("an answer is left")
        };
        let figures = measure(&mut cases, plan, &mut probe);
        let log = log.borrow().clone();
        (figures, log)
    }

    #[test]
    fn the_probe_stands_between_the_turns() {
        let (figures, log) = played(&[100.0; 4], 3);
        assert_eq!(log, "AAABBBpABpABpABp", "the first calls calibrate");
        let ratios = figures.iter().map(|figure| figure.to_probe.unwrap().median);
        assert_eq!(ratios.collect::<Vec<_>>(), [0.5, 1.5]);
        assert_eq!((figures[1].ns.unwrap().q1, figures[1].samples), (150.0, 3));
    }

    #[test]
    fn a_turn_between_probes_that_disagree_is_dropped_and_repeated() {
        let (figures, _) = played(&[100.0, 109.0, 400.0, 400.0], 2);
        let [first, ..] = &figures[..] else {
            panic!("no figure");
        };
        assert_eq!((first.samples, first.dropped), (2, 1));
        let probe = first.probe_ns.unwrap();
        assert_eq!(
            (probe.q1, probe.q3),
            (104.5 + 295.5 / 4.0, 400.0 - 295.5 / 4.0)
        );
    }

    #[test]
    fn probes_that_never_agree_end_without_a_figure() {
        let (figures, _) = played(&[1.0, 2.0, 4.0, 8.0, 16.0], 1);
        assert_eq!((figures[0].samples, figures[0].dropped), (0, 4));
        assert!(figures[0].to_string().contains("no figure"));
    }

    #[test]
    fn a_record_is_one_line_a_figure_and_none_of_a_busy_machine() {
        let folder = std::env::temp_dir().join(format!("keyfence-bench-{}", std::process::id()));
        let (mut figures, _) = played(&[100.0; 4], 3);
        let plan = Plan {
            samples: 3,
            ..Plan::SMALL
        };
        for _ in 0..2 {
            record(&folder, "test", plan, &figures).unwrap();
        }
        figures[1].samples = 2;
        let refused = record(&folder, "test", plan, &figures).unwrap_err();
        assert!(refused.to_string().contains("2 of 3 samples"), "{refused}");
        let lines = fs::read_to_string(folder.join("test.ndjson")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let ours = |line: &str| line.starts_with(r#"{"bench":"test","case":""#);
        assert_eq!(lines.lines().filter(|line| ours(line)).count(), 4);
    }

    #[test]
    fn a_suite_takes_what_cargo_passes_and_a_word() {
        let of = |arguments: &[&str]| {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned());
            let mut suite = Suite::new("test", arguments);
            suite.case("write/8", 1, repeated(|| {}));
            suite.case("read/8", 1, repeated(|| {}));
            (suite.plan, suite.record, suite.cases.len())
        };
        assert_eq!(of(&[]), (Plan::SMALL, false, 2));
        assert_eq!(of(&["--bench", "--record", "write"]), (Plan::FULL, true, 1));
    }
}
