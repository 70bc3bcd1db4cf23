use serde_json::Value;

use super::*;

/// The paths of all fields, `phases[].ops.write.latency_ns.p99`.
fn paths(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let dot = if path.is_empty() { "" } else { "." };
                paths(value, &format!("{path}{dot}{name}"), found);
            }
        }
        Value::Array(items) if !items.is_empty() => paths(&items[0], &format!("{path}[]"), found),
        _ => found.push(path.to_owned()),
    }
}

#[track_caller]
fn assert_has(report: &Report, wanted: &[&str]) {
    let value = serde_json::to_value(report).expect("a report is JSON");
    let mut found = Vec::new();
    paths(&value, "", &mut found);
    for path in wanted {
        assert!(
            found.iter().any(|field| field == path),
            "{path} is not in {found:#?}"
        );
    }
}

fn good(command: &'static str, body: Body) -> Report {
    Report {
        device: Some("soft".into()),
        body: Some(body),
        ..Report::new(Some(command), Vec::new())
    }
}

#[test]
fn a_run_has_the_published_fields() {
    let run = RunReport {
        lcores: vec![LcoreReport::default()],
        phases: vec![PhaseReport::default()],
        ..RunReport::default()
    };
    let mut wanted: Vec<String> = "version command ok device errors memory.page_kind memory.bytes memory.locked duration_s \
        probe_ns phases[].name reclaim.contexts_reclaimed reclaim.grants_zapped reclaim.quarantined reclaim.reclaim_ns.p50 \
        reclaim.reclaim_ns.p99 reclaim.reclaim_ns.max coverage.reclaims_with_ops_in_flight \
        coverage.revokes_with_write_in_flight coverage.reuses coverage.bytes_scanned coverage.late_reads_checked \
        checks.late_bytes checks.late_reads checks.stale_keys checks.open_wrs checks.bystander_errors \
        checks.unfinished_ops checks.leaked_grants checks.books_balance interrupted caught_by lanes.repairs \
        lanes.repair_ns.max peers.down bystanders.quiet.p99 bystanders.chaos.p99"
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    for op in ["write", "read", "send"] {
        let fields = ["count", "bytes", "samples"].map(str::to_owned);
        let quantiles =
            ["min", "p50", "p90", "p99", "p99_9", "max"].map(|name| format!("latency_ns.{name}"));
        wanted.extend(
            fields
                .into_iter()
                .chain(quantiles)
                .map(|field| format!("phases[].ops.{op}.{field}")),
        );
    }
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    assert_has(&good("run", Body::Run(Box::new(run))), &wanted);
}

#[test]
fn a_copy_has_the_published_fields() {
    let body = Body::Copy(Box::default());
    let wanted = "version command ok device errors copy.bytes copy.device_bytes copy.resent_bytes copy.kills copy.digest \
        reclaim.contexts_reclaimed reclaim.grants_zapped reclaim.quarantined checks.late_bytes checks.books_balance";
    assert_has(
        &good("copy", body),
        &wanted.split_whitespace().collect::<Vec<_>>(),
    );
}

#[test]
fn a_perf_has_the_published_fields() {
    let perf = PerfReport {
        op: crate::perf::Op::Write,
        size: 8,
        iters: 1,
        depth: 1,
        open_loop: false,
        one_way: false,
        cpus: [0, 1],
        latency_ns: Latency::default(),
        rate_per_s: 1.0,
        probe_ns: 1.0,
        rounds: 1,
        rounds_kept: 1,
        latency_to_probe: Middle::default(),
    };
    let body = Body::Perf(Box::new(PerfBody { perf }));
    let wanted = "version command ok device errors perf.op perf.size perf.iters perf.latency_ns.p50 perf.latency_ns.max \
        perf.rate_per_s perf.probe_ns perf.latency_to_probe.p50";
    assert_has(
        &good("perf", body),
        &wanted.split_whitespace().collect::<Vec<_>>(),
    );
}

#[test]
fn a_probe_has_the_published_fields() {
    let probe = ProbeReport {
        device: "rxe0".into(),
        tests: vec![TestReport {
            name: "windows",
            result: "pass",
            note: String::new(),
        }],
        key_mode: "region",
        reason: String::new(),
        interrupted: false,
    };
    let wanted = "version command ok device errors probe.device probe.tests[].name probe.tests[].result probe.tests[].note \
        probe.key_mode probe.reason probe.interrupted";
    assert_has(
        &good("probe", Body::Probe(ProbeBody { probe })),
        &wanted.split_whitespace().collect::<Vec<_>>(),
    );
}

#[test]
fn a_failure_before_the_command_had_fields_is_an_object_too() {
    let report = Report::new(None, vec![Problem::text("no such device")]);
    let json = serde_json::to_string(&report).expect("a report is JSON");
    assert_eq!(
        json,
        r#"{"version":1,"command":null,"ok":false,"device":null,"errors":[{"message":"no such device"}]}"#
    );
}
