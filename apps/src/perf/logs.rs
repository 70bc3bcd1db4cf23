//! Histogram files that other tools read.

use std::fmt::Write as _;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use keyfence::latency::LatencyHistogram;

use super::meter::Measured;

/// Percentile steps to each halving of what is left: HdrHistogram's own default.
const TICKS_PER_HALF: u32 = 5;

/// Writes all rounds together in the `.hgrm` format: value in us, percentile, count, 1/(1-percentile).
///
/// # Errors
/// What the file system said.
pub fn write_hgrm(path: &Path, measured: &Measured) -> Result<(), String> {
    let all = measured.all();
    std::fs::write(path, hgrm(&all)).map_err(|error| format!("{}: {error}", path.display()))
}

fn hgrm(all: &LatencyHistogram) -> String {
    let histogram = all.as_hdr();
    let us = |ns: f64| ns / 1e3;
    let mut text = format!(
        "{:>12} {:>14} {:>10} {:>14}\n\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    );
    for step in histogram.iter_quantiles(TICKS_PER_HALF) {
        let quantile = step.quantile_iterated_to();
        let value = us(step.value_iterated_to() as f64);
        let count = histogram.count_between(0, step.value_iterated_to());
        let _ = if quantile < 1.0 {
            let rest = 1.0 / (1.0 - quantile);
            writeln!(
                text,
                "{value:>12.3} {quantile:>2.12} {count:>10} {rest:>14.2}"
            )
        } else {
            writeln!(text, "{value:>12.3} {quantile:>2.12} {count:>10}")
        };
    }
    let _ = write!(
        text,
        "#[Mean    = {:>12.3}, StdDeviation   = {:>12.3}]\n#[Max     = {:>12.3}, Total count    = {:>12}]\n#[Buckets = {:>12}, SubBuckets     = {:>12}]\n",
        us(histogram.mean()),
        us(histogram.stdev()),
        us(all.max_ns() as f64),
        histogram.len(),
        histogram.buckets(),
        2048
    );
    text
}

/// Writes a line a round in the V2 log format; times from the start of the clock, values in ns.
///
/// # Errors
/// What the file system said.
pub fn write_log(path: &Path, measured: &Measured) -> Result<(), String> {
    let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let mut file = BufWriter::new(File::create(path).map_err(|error| wrong(&error))?);
    let mut serializer = V2DeflateSerializer::new();
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment("keyfence perf: latencies in ns, an interval a round")
        .with_start_time(UNIX_EPOCH)
        .with_base_time(UNIX_EPOCH)
        .begin_log_with(&mut file, &mut serializer)
        .map_err(|error| wrong(&error))?;
    for round in &measured.rounds {
        log.write_histogram(
            round.latency.as_hdr(),
            Duration::from_nanos(round.began_ns),
            Duration::from_nanos(round.elapsed_ns),
            Tag::new("round"),
        )
        .map_err(|error| format!("{}: {error:?}", path.display()))?;
    }
    Ok(())
}
