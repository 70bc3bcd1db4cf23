//! Values by themselves: legal, refused, and how the refusal reads.

use std::fs;

use keyfence::config::{Config, IdlePolicy, OptionValue, PeerAddress, PoolConfig};

use super::folder::TestFolder;
use super::{CATALOG, LEAST, error_of, errors_of, place_of, read};

#[test]
fn the_least_file_gets_the_defaults() {
    let config = read(LEAST);
    assert_eq!(config.engines[0].device, "soft");
    assert_eq!(config.engines[0].idle, IdlePolicy::Spin);
    assert_eq!(u64::from(config.limits.buffers), config.memory.buffers());
    assert_eq!(config.lanes(0), 0);
    assert!(config.load.is_none());
}

#[test]
fn three_mistakes_are_three_lines_in_the_order_of_the_file() {
    let source =
        "[[engine]]\nname = \"ä b\"\nlcores = [0]\n[timeouts]\nfence = 20\nfense = \"20ms\"\n";
    let lines: Vec<String> = errors_of(source).iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "f.toml:2:8: engine.name: is the string \"ä b\"; allowed: 1 to 63 letters, digits, '-', '_' or '.'",
            "f.toml:5:9: timeouts.fence: is the integer 20; allowed: a duration from \"100us\" to \"60s\" (units ns, us, ms, s)",
            "f.toml:6:1: timeouts.fense: unknown key, did you mean fence?; allowed: fence, invalidate, drain, control, per_key, \
             keepalive, reconnect, lease, client_lease, flush_interval, shutdown",
        ]
    );
}

#[test]
fn columns_count_characters_and_lines_count_with_crlf_and_a_byte_order_mark() {
    let error = error_of("\u{feff}[[engine]]\r\nname = \"a\"\r\nlcores = [\"äö\", 0]\r\n");
    assert_eq!((error.line, error.column), (3, 11));
    let error = error_of("\u{feff}x = 1\n[[engine]]\nname = \"a\"\nlcores = [0]\n");
    assert_eq!((error.line, error.column, error.key.as_str()), (1, 1, "x"));
}

#[test]
fn syntax_errors_are_reported_beside_others_and_hide_nothing_but_their_own_line() {
    let source = format!("{LEAST}[memory]\nbytes = 64 MiB\nlocks = \"off\"\nnuma = \n");
    let errors = errors_of(&source);
    let at: Vec<(usize, &str)> = errors
        .iter()
        .map(|error| (error.line, error.key.as_str()))
        .collect();
    assert_eq!(at, [(5, "toml"), (6, "memory.locks"), (7, "toml")]);
    let errors = errors_of(&format!("{LEAST}[memory]\nnuma = 0\nnuma = 1\n"));
    assert_eq!(
        (errors[0].line, errors[0].what.as_str()),
        (6, "duplicate key")
    );
}

#[test]
fn an_empty_file_has_one_error() {
    let error = error_of("");
    assert_eq!(
        (
            error.line,
            error.column,
            error.key.as_str(),
            error.what.as_str()
        ),
        (1, 1, "engine", "is missing")
    );
}

#[test]
fn b45_pool_sizes_have_one_meaning_each_and_the_error_shows_a_legal_value() {
    let pool = |size: &str| {
        format!("{LEAST}[memory]\nbytes = \"256MiB\"\npools = [{{ buffer = {size}, count = 1 }}]\n")
    };
    let one = |buffer_bytes| {
        vec![PoolConfig {
            buffer_bytes,
            count: 1,
        }]
    };
    assert_eq!(read(&pool("\"64MB\"")).memory.pools, one(64_000_000));
    assert_eq!(read(&pool("\"64MiB\"")).memory.pools, one(67_108_864));
    assert_eq!(read(&pool("67108864")).memory.pools, one(67_108_864));
    for (size, what) in [
        ("43", "is the integer 43"),
        ("0", "is the integer 0"),
        ("-64", "is the integer -64"),
        ("\"43B\"", "is the string \"43B\""),
        ("\"64\"", "is the string \"64\", which has no unit"),
        (
            "\"64mb\"",
            "is the string \"64mb\", which has the unknown unit \"mb\"",
        ),
        (
            "\"64 MB\"",
            "is the string \"64 MB\", which is no whole number with a unit",
        ),
        ("64.0", "is the number 64.0"),
        (
            "99999999999999999999999999999999999999999999",
            "is the integer 9999999999999999999999999999999999999999",
        ),
    ] {
        let source = pool(size);
        let error = error_of(&source);
        assert_eq!(
            (error.key.as_str(), error.what.as_str()),
            ("memory.pools.buffer", what)
        );
        assert_eq!(
            (error.line, error.column),
            place_of(&source, &format!("{size}, count"))
        );
        assert!(
            error
                .allowed
                .starts_with("a multiple of 64 bytes from \"64B\" to \"1GiB\""),
            "{error}"
        );
        let legal = read(&pool("\"64B\"")).memory.pools;
        assert_eq!(legal, one(64));
    }
}

#[test]
fn a_lease_may_be_none_and_no_other_duration() {
    assert_eq!(
        read(&format!("{LEAST}[timeouts]\nlease = \"none\"\n"))
            .timeouts
            .lease_ns,
        None
    );
    let error = error_of(&format!("{LEAST}[timeouts]\nlease = \"never\"\n"));
    assert!(
        error.allowed.starts_with("\"none\", or a duration"),
        "{error}"
    );
    assert_eq!(
        error_of(&format!("{LEAST}[timeouts]\nfence = \"none\"\n")).key,
        "timeouts.fence"
    );
}

#[test]
fn lists_are_bounded_and_each_wrong_item_has_its_place() {
    let lcores = |text: &str| format!("[[engine]]\nname = \"a\"\nlcores = {text}\n");
    assert_eq!(error_of(&lcores("[]")).what, "is a list of 0 items");
    assert_eq!(error_of(&lcores("3")).what, "is the integer 3");
    assert_eq!(error_of(&lcores("[1, 2, 1]")).what, "names CPU 1 twice");
    let errors = errors_of(&lcores("[0,\n -1, true]"));
    let at: Vec<(usize, usize)> = errors
        .iter()
        .map(|error| (error.line, error.column))
        .collect();
    assert_eq!(at, [(4, 2), (4, 6)]);
}

#[test]
fn peers_have_three_kinds_of_address() {
    let peer = |address: &str, more: &str| {
        format!("{LEAST}[[peer]]\nname = \"b\"\naddress = \"{address}\"\n{more}")
    };
    let address = |text: &str, more: &str| read(&peer(text, more)).peers[0].address.clone();
    let secret = "secret_file = \"s\"\n";
    assert_eq!(address("shm:b", ""), PeerAddress::Shm("b".into()));
    assert_eq!(
        address("rdma:h:7", secret),
        PeerAddress::Rdma {
            host: "h".into(),
            port: 7
        }
    );
    assert_eq!(
        address("rdma:[fe80::1]:7", secret),
        PeerAddress::Rdma {
            host: "[fe80::1]".into(),
            port: 7
        }
    );
    for wrong in [
        "",
        "b",
        "tcp:b",
        "shm:",
        "shm:a/b",
        "rdma:h",
        "rdma:h:0",
        "rdma:h:+7",
        "rdma:h:65536",
        "rdma:a:b:7",
    ] {
        assert_eq!(
            errors_of(&peer(wrong, secret))[0].key,
            "peer.address",
            "{wrong}"
        );
    }
}

#[test]
fn services_have_the_keys_of_their_kind_and_no_others() {
    let service = |more: &str| format!("{LEAST}[[service]]\nkind = \"echo\"\nname = \"e\"\n{more}");
    let all = "burst = 8\nchunk = \"4KiB\"\nevery = \"3us\"\nloud = true\ngreeting = \"hi\"\n";
    let mut options = read(&service(all)).services.remove(0).options;
    options.sort_by_key(|(key, _)| *key);
    assert_eq!(
        options,
        [
            ("burst", OptionValue::Count(8)),
            ("chunk", OptionValue::Bytes(4096)),
            ("every", OptionValue::DurationNs(3000)),
            ("greeting", OptionValue::Text("hi".into())),
            ("loud", OptionValue::Flag(true)),
        ]
    );
    assert_eq!(
        error_of(&service("bursts = 8\n")).what,
        "unknown key, did you mean burst?"
    );
    assert_eq!(
        error_of(&service("burst = 65\n")).allowed,
        "an integer from 1 to 64"
    );
    let error = error_of(&format!(
        "{LEAST}[[service]]\nkind = \"ecko\"\nname = \"e\"\nburst = 8\n"
    ));
    assert_eq!(
        (error.key.as_str(), error.allowed.as_str()),
        ("service.kind", "\"echo\"")
    );
}

#[test]
fn a_load_without_its_minima_is_refused() {
    let errors = errors_of(&format!("{LEAST}[load]\nseed = 1\n"));
    let keys: Vec<&str> = errors.iter().map(|error| error.key.as_str()).collect();
    assert_eq!(
        keys,
        [
            "load.min_operations",
            "load.min_reclaims",
            "load.min_kills_with_ops_in_flight",
            "load.min_revokes_with_write_in_flight",
            "load.max_quarantined",
            "load.min_share_percent",
        ]
    );
    assert!(
        errors
            .iter()
            .all(|error| (error.line, error.column) == (4, 1) && error.what == "is missing")
    );
}

#[test]
fn a_file_that_cannot_be_read_is_one_error() {
    let folder = TestFolder::new("unreadable");
    let error = Config::load(&folder.0.join("none.toml"), CATALOG).expect_err("there is none");
    assert_eq!(error.as_slice().len(), 1);
    assert!(
        error
            .to_string()
            .contains("none.toml:0:0: file: cannot be read: "),
        "{error}"
    );
    let file = folder.0.join("binary.toml");
    fs::write(&file, [0xff, 0xfe]).expect("writable");
    assert!(Config::load(&file, CATALOG).is_err());
}
