//! Values that don't fit together, each refused at one key with the numbers.

use keyfence::config::Timeouts;
use keyfence::limits::{Limit, Limits, budget_bytes};

use super::{LEAST, error_of, errors_of, place_of, read};

const MINIMA: &str = "min_operations = 1\nmin_reclaims = 1\nmin_kills_with_ops_in_flight = 1\n\
                      min_revokes_with_write_in_flight = 1\nmax_quarantined = 0\nmin_share_percent = 1\n";

/// Appended to `base`, `more` gives one error at `at`: with this key, these words in what is wrong, and these in what is allowed.
#[track_caller]
pub fn assert_refused(base: &str, more: &str, at: &str, key: &str, what: &[&str], allowed: &str) {
    let source = format!("{base}{more}");
    let error = error_of(&source);
    assert_eq!((error.line, error.column), place_of(&source, at), "{error}");
    assert_eq!(error.key, key, "{error}");
    for words in what {
        assert!(error.what.contains(words), "{words}: {error}");
    }
    assert!(error.allowed.contains(allowed), "{error}");
}

#[test]
fn r6_a_reclaim_bound_above_shutdown_is_refused_with_its_terms() {
    let timeouts = "[timeouts]\nfence = \"500ms\"\ninvalidate = \"300ms\"\ndrain = \"100ms\"\ncontrol = \"300ms\"\nper_key = \"100us\"\n";
    let terms = [
        "2619200us",
        "fence 500ms",
        "invalidate 300ms",
        "drain 100ms",
        "3 x control 300ms",
        "8192 keys x per_key 100us",
    ];
    let tight = format!("{timeouts}shutdown = \"2209ms\"\n");
    assert_refused(
        LEAST,
        &tight,
        "\"2209ms\"",
        "timeouts.shutdown",
        &terms,
        "at least \"2619200us\"",
    );
    read(&format!("{LEAST}{timeouts}shutdown = \"2619200us\"\n"));
    // A default is as wrong as a value; the table is to blame.
    let tight = timeouts.replace("500ms", "800ms");
    assert_refused(
        LEAST,
        &tight,
        "[timeouts]",
        "timeouts.shutdown",
        &["is 2s", "2919200us"],
        "at least \"2919200us\"",
    );
}

#[test]
fn r6_a_lane_that_cannot_drain_within_the_fence_is_refused() {
    let limits = "[limits]\nlane_bytes_in_flight = \"4MB\"\nslowest_rate = \"20MB\"\n";
    read(&format!("{LEAST}{limits}"));
    let slower = limits.replace("20MB", "10MB");
    let what = ["is 4MB", "400ms", "10MB/s", "fence timeout is 200ms"];
    assert_refused(
        LEAST,
        &slower,
        "\"4MB\"",
        "limits.lane_bytes_in_flight",
        &what,
        "at most \"2000000B\"",
    );
    let what = ["is 8MiB", "4MB"];
    assert_refused(
        LEAST,
        &format!("{limits}slice = \"8MiB\"\n"),
        "\"8MiB\"",
        "limits.slice",
        &what,
        "at most \"4MB\"",
    );
}

#[test]
fn keepalives_come_twice_within_a_lease_and_a_reconnect() {
    let more = "[timeouts]\nkeepalive = \"1s\"\nlease = \"1999ms\"\n";
    assert_refused(
        LEAST,
        more,
        "\"1999ms\"",
        "timeouts.lease",
        &["interval is 1s"],
        "at least \"2s\"",
    );
    let more = "[timeouts]\nkeepalive = \"1s\"\nreconnect = \"1999ms\"\n";
    assert_refused(
        LEAST,
        more,
        "\"1999ms\"",
        "timeouts.reconnect",
        &["interval is 1s"],
        "at least \"2s\"",
    );
    read(&format!(
        "{LEAST}[timeouts]\nkeepalive = \"1s\"\nlease = \"none\"\n"
    ));
}

#[test]
fn the_budget_is_what_the_arena_must_hold() {
    let sum = budget_bytes(&read(LEAST).budget(0));
    read(&format!("{LEAST}[memory]\nbytes = {sum}\n"));
    let less = format!("[memory]\nbytes = {}\n", sum - 1);
    let what = [
        "engine a needs",
        "buffer pool 1",
        "buffer pool 2",
        "receives",
        "operations",
    ];
    assert_refused(
        LEAST,
        &less,
        &(sum - 1).to_string(),
        "memory.bytes",
        &what,
        "at least",
    );
    let overflow = "[memory]\npools = [{ buffer = \"1GiB\", count = 16777216 }]\n";
    assert_refused(
        LEAST,
        overflow,
        "[memory]",
        "memory.bytes",
        &["is 128MiB"],
        "smaller consumers",
    );
}

#[test]
fn pools_ascend_and_hold_the_buffers() {
    let pools = |pools: &str| format!("[memory]\npools = [{pools}]\n");
    let (small, large) = ("{ buffer = 64, count = 4 }", "{ buffer = 128, count = 4 }");
    let key = "memory.pools";
    assert_refused(
        LEAST,
        &pools(&format!("{large}, {small}")),
        "[{",
        key,
        &["buffers of 128B, 64B"],
        "ascending",
    );
    assert_refused(
        LEAST,
        &pools(&format!("{small}, {small}")),
        "[{",
        key,
        &["buffers of 64B, 64B"],
        "ascending",
    );
    assert_refused(LEAST, &pools(""), "[]", key, &["0 pools"], "1 to 4");
    let five = [64, 128, 192, 256, 320]
        .map(|size| format!("{{ buffer = {size}, count = 1 }}"))
        .join(", ");
    assert_refused(LEAST, &pools(&five), "[{", key, &["5 pools"], "1 to 4");
    let many = format!(
        "[limits]\nbuffers = 9\n{}",
        pools(&format!("{small}, {large}"))
    );
    assert_refused(
        LEAST,
        &many,
        "9\n",
        "limits.buffers",
        &["the pools have 8"],
        "at most 8",
    );
    let plain = "[memory]\npage_size = \"4KiB\"\nhugepages = \"require\"\n";
    assert_refused(
        LEAST,
        plain,
        "\"4KiB\"",
        "memory.page_size",
        &["\"require\""],
        "\"2MiB\"",
    );
}

#[test]
fn a_load_fits_its_engines() {
    let load = |more: &str| format!("[load]\n{more}\nlarge = \"64KiB\"\n{MINIMA}");
    let limits = "[limits]\nslice = \"16KiB\"\n";
    read(&format!("{LEAST}{limits}{}", load("")));
    let refused = |more: &str, at: &str, key: &str, what: &[&str], allowed: &str| {
        assert_refused(
            LEAST,
            &format!("{limits}{}", load(more)),
            at,
            key,
            what,
            allowed,
        );
    };
    refused(
        "contexts = 257",
        "257",
        "load.contexts",
        &["limits.contexts is 256"],
        "at most 256",
    );
    refused(
        "sizes = [64, \"2MiB\"]",
        "[64",
        "load.sizes",
        &["largest buffer has 1MiB"],
        "at most \"1MiB\"",
    );
    refused("mix = {}", "{}", "load.mix", &["no operation"], "write = 2");
    refused(
        "paced_share = 1.5",
        "1.5",
        "load.paced_share",
        &["1.5"],
        "from 0 to 1",
    );
    refused(
        "paced_share = nan",
        "nan",
        "load.paced_share",
        &["nan"],
        "from 0 to 1",
    );
    assert_refused(
        LEAST,
        &load(""),
        "\"64KiB\"",
        "load.large",
        &["one slice of 64KiB"],
        "more than",
    );
    let small = "[limits]\nslice = \"16KiB\"\n[limits.context]\nbytes_in_flight = \"32KiB\"\n";
    assert_refused(
        LEAST,
        &format!("{small}{}", load("")),
        "\"64KiB\"",
        "load.large",
        &["32KiB"],
        "at most",
    );
}

#[test]
fn troubles_need_engines_that_bear_them_and_minima_that_miss_them() {
    let load = |limits: &str, more: &str| {
        let minima = format!("large = \"128KiB\"\n{MINIMA}");
        format!("[limits]\nslice = \"64KiB\"\n{limits}\n[load]\n{more}\n{minima}")
    };
    let all = "lane_breaks_per_s = 2\nmin_lane_repairs = 1\ndead_keys_per_s = 1\nmin_dead_keys = 1\npanics_per_s = 1\nmin_panics = 1\n\
               quiet_share = 0.3\nbystanders = 63";
    read(&format!("{LEAST}{}", load("rebuilds = 15", all)));
    let refused = |limits: &str, more: &str, at: &str, key: &str, what: &[&str], allowed: &str| {
        assert_refused(LEAST, &load(limits, more), at, key, what, allowed);
    };
    let what = ["is 14", "3 lanes a second", "15 in a reconnect time of 5s"];
    let key = "limits.rebuilds";
    refused("rebuilds = 14", all, "14", key, &what, "at least 15");
    let key = "load.quiet_share";
    let what = ["paced_share is 0.3"];
    refused("", "quiet_share = 0.5", "0.5", key, &what, "at most 0.3");
    let key = "load.bystanders";
    let what = ["contexts is 64"];
    refused("", "bystanders = 64", "64\n", key, &what, "at most 63");
    for (trouble, minimum) in [
        ("lane_breaks_per_s", "min_lane_repairs"),
        ("dead_keys_per_s", "min_dead_keys"),
        ("panics_per_s", "min_panics"),
        ("hangs_per_s", "min_hangs"),
    ] {
        let key = format!("load.{minimum}");
        let what = [&*format!("{trouble} is 3")];
        let more = format!("{trouble} = 3");
        refused("rebuilds = 99", &more, "[load]", &key, &what, "at least 1");
        let more = format!("{trouble} = 3\n{minimum} = 0");
        let at = "0\nlarge";
        refused("rebuilds = 99", &more, at, &key, &what, "at least 1");
    }
}

#[test]
fn peers_that_come_and_go_need_a_third_engine_and_leases_that_run_out_before_their_sessions() {
    let load = |more: &str| {
        format!("[limits]\nslice = \"16KiB\"\n[load]\nlarge = \"64KiB\"\n{more}\n{MINIMA}")
    };
    let minima = "min_peers_down = 1\nmin_leases_ended = 1";
    let refused = |times: &str, more: &str, at: &str, key: &str, what: &[&str], allowed: &str| {
        let source = format!("[timeouts]\n{times}\n{}", load(more));
        assert_refused(LEAST, &source, at, key, what, allowed);
    };
    let soon = "lease = \"1s\"\nreconnect = \"2s\"";
    for key in ["peer_stops", "peer_restarts"] {
        let more = format!("{key} = 3\n{minima}");
        let path = format!("load.{key}");
        refused(
            soon,
            &more,
            "3\nmin_peers",
            &path,
            &["has 1 engine"],
            "a third [[engine]]",
        );
    }
    let late = "lease = \"2s\"\nreconnect = \"2s\"";
    let what = ["timeouts.reconnect 2s"];
    refused(
        late,
        minima,
        "\"2s\"\nreconnect",
        "timeouts.lease",
        &what,
        "less than",
    );
}

#[test]
fn a_check_leaves_out_what_was_refused_already() {
    let errors = errors_of(&format!(
        "{LEAST}[timeouts]\nshutdown = \"1ms\"\nfence = \"x\"\n"
    ));
    let keys: Vec<&str> = errors.iter().map(|error| error.key.as_str()).collect();
    assert_eq!(
        keys,
        ["timeouts.fence"],
        "the bound can't be told without the fence"
    );
    let errors = errors_of(&format!(
        "{LEAST}[timeouts]\nshutdown = \"1ms\"\nkeepalive = \"x\"\n"
    ));
    let keys: Vec<&str> = errors.iter().map(|error| error.key.as_str()).collect();
    assert_eq!(keys, ["timeouts.shutdown", "timeouts.keepalive"]);
}

#[test]
fn no_backoff_without_its_policy() {
    let key = "engine.backoff_max";
    assert_refused(
        LEAST,
        "backoff_max = \"1ms\"\n",
        "\"1ms\"",
        key,
        &["no effect"],
        "\"backoff\"",
    );
}

#[test]
fn r9_an_error_names_the_limit_its_value_and_the_use() {
    let limits = Limits::default();
    let value = limits.value(Limit::ContextBytesInFlight);
    let error = Limit::ContextBytesInFlight
        .admit(value, value - 10, 11)
        .expect_err("one too many");
    assert_eq!(
        (error.limit, error.value, error.in_use, error.wanted),
        (Limit::ContextBytesInFlight, value, value - 10, 11)
    );
    let text = error.to_string();
    assert!(
        text.contains(
            "limits.context.bytes_in_flight is 16777216 with 16777206 in use, 11 more wanted"
        ),
        "{text}"
    );
    assert!(
        Limit::ContextBytesInFlight
            .admit(value, value - 10, 10)
            .is_ok()
    );
    assert!(
        Limit::Grants.admit(u64::MAX, u64::MAX, 1).is_err(),
        "a sum beyond 64 bits is past every limit"
    );
}

#[test]
fn an_lcores_share_rounds_up_and_keeps_what_is_its_own() {
    let whole = Limits {
        contexts: 5,
        ..Limits::default()
    };
    let share = whole.share_of_lcore(2);
    assert_eq!((share.contexts, share.grants), (3, whole.grants / 2));
    assert_eq!(
        (share.send_depth, share.epochs, &share.context),
        (whole.send_depth, whole.epochs, &whole.context)
    );
    assert_eq!(whole.share_of_lcore(0), whole);
}

#[test]
fn the_reclaim_bound_saturates() {
    let endless = Timeouts {
        fence_timeout_ns: u64::MAX,
        ..Timeouts::default()
    };
    assert_eq!(endless.reclaim_bound_ns(1), u64::MAX);
}
