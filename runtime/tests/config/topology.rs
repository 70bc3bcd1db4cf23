//! Engines, peers and services: who there is, and who knows whom.

use keyfence::limits::budget_bytes;

use super::cross::assert_refused;
use super::{LEAST, read};

/// Two engines that know each other.
const PAIR: &str = "[[engine]]\nname = \"a\"\nlcores = [0, 1]\n[[engine]]\nname = \"b\"\nlcores = [0]\n\
                    [[peer]]\nname = \"b\"\nengine = \"a\"\naddress = \"local:b\"\n\
                    [[peer]]\nname = \"a\"\nengine = \"b\"\naddress = \"local:a\"\n";

#[test]
fn an_engine_that_a_peer_connects_to_listens() {
    let peer = |name: &str| {
        format!(
            "[[peer]]\nname = \"{name}\"\naddress = \"rdma:10.0.0.1:7471\"\nsecret_file = \"s\"\n"
        )
    };
    let engine = |listen: &str| format!("[[engine]]\nname = \"b\"\nlcores = [0]\n{listen}");
    read(&(engine("") + &peer("c")));
    assert_refused(
        &engine(""),
        &peer("a"),
        "\"rdma:10.0.0.1:7471\"",
        "peer.address",
        &["connects to engine b", "listens nowhere"],
        "listen = \"rdma:HOST:PORT\" in engine b",
    );
    let config = read(&(engine("listen = \"rdma:[fe80::1]:7471\"\n") + &peer("a")));
    let listen = config.engines[0].listen.as_ref().map(ToString::to_string);
    assert_eq!(listen.as_deref(), Some("rdma:[fe80::1]:7471"));
    for bad in ["local:b", "shm:b", "rdma:10.0.0.1", "10.0.0.1:7471"] {
        assert_refused(
            "",
            &engine(&format!("listen = \"{bad}\"\n")),
            &format!("\"{bad}\""),
            "engine.listen",
            &[bad],
            "rdma:HOST:PORT",
        );
    }
}

#[test]
fn names_are_unique_and_known() {
    read(PAIR);
    let third = "[[engine]]\nname = \"b\" #third\nlcores = [0]\n";
    assert_refused(
        PAIR,
        third,
        "\"b\" #third",
        "engine.name",
        &["second time"],
        "of its own",
    );
    let again = "[[peer]]\nname = \"b\" #again\nengine = \"a\"\naddress = \"shm:b\"\n";
    assert_refused(
        PAIR,
        again,
        "\"b\" #again",
        "peer.name",
        &["second time"],
        "of its own",
    );
    let nobody = "[[peer]]\nname = \"c\"\nengine = \"z\"\naddress = \"shm:c\"\n";
    assert_refused(
        PAIR,
        nobody,
        "\"z\"",
        "peer.engine",
        &["no engine of this file"],
        "\"a\" or \"b\"",
    );
    let whose = "[[peer]] #whose\nname = \"c\"\naddress = \"shm:c\"\n";
    assert_refused(
        PAIR,
        whose,
        "[[peer]] #whose",
        "peer.engine",
        &["is missing"],
        "\"a\" or \"b\"",
    );
    let service = "[[service]]\nkind = \"echo\"\nname = \"e\"\nengine = \"a\"\n";
    let twice = format!("{service}{}", service.replace("\"e\"", "\"e\" #twice"));
    assert_refused(
        PAIR,
        &twice,
        "\"e\" #twice",
        "service.name",
        &["second time"],
        "of its own",
    );
    let beyond = format!("{service}lcore = 2\n");
    assert_refused(
        PAIR,
        &beyond,
        "2\n",
        "service.lcore",
        &["engine a has 2 lcores"],
        "from 0 to 1",
    );
}

#[test]
fn r12_engines_of_one_process_admit_each_other_by_name() {
    let config = read(PAIR);
    assert_eq!((config.peers[0].engine, config.peers[0].lcores), (0, 1));
    assert_eq!((config.peers[1].engine, config.peers[1].lcores), (1, 2));
    let one_way = PAIR
        .split("[[peer]]\nname = \"a\"")
        .next()
        .expect("a first half");
    assert_refused(
        one_way,
        "",
        "\"local:b\"",
        "peer.address",
        &["does not have \"a\" as a peer"],
        "local:a",
    );
    let itself = "[[peer]]\nname = \"a\"\nengine = \"a\"\naddress = \"local:a\" #self\n";
    assert_refused(
        PAIR,
        itself,
        "\"local:a\" #self",
        "peer.address",
        &["no other engine"],
        "\"b\"",
    );
    let misnamed = PAIR.replace(
        "name = \"b\"\nengine = \"a\"",
        "name = \"c\"\nengine = \"a\"",
    );
    assert_refused(
        &misnamed,
        "",
        "\"local:b\"",
        "peer.address",
        &["the peer's name is \"c\""],
        "name = \"b\"",
    );
    let counted = PAIR.replace("\"local:b\"", "\"local:b\"\nlcores = 3");
    assert_refused(
        &counted,
        "",
        "3\n",
        "peer.lcores",
        &["engine b has 1"],
        "1, or no lcores",
    );
}

#[test]
fn r12_secrets_go_with_the_address() {
    // Of two engines of one file both have one, or none.
    let local = PAIR.replace("\"local:b\"", "\"local:b\"\nsecret_file = \"s\"");
    assert_refused(
        &local,
        "",
        "\"s\"",
        "peer.secret_file",
        &["engine \"b\" has none for \"a\""],
        "in both, or in none",
    );
    read(&local.replace("\"local:a\"", "\"local:a\"\nsecret_file = \"s\""));
    let rdma = "[[peer]] #rdma\nname = \"c\"\naddress = \"rdma:h:1\"\n";
    assert_refused(
        LEAST,
        rdma,
        "[[peer]] #rdma",
        "peer.secret_file",
        &["is missing"],
        "rdma: needs",
    );
}

#[test]
fn two_engines_do_not_listen_at_one_place() {
    let at = |port| format!("name = \"b\"\nlisten = \"rdma:h:{port}\"");
    let with = |a, b: u16| {
        let first = PAIR.replacen(
            "name = \"a\"",
            &format!("name = \"a\"\nlisten = \"rdma:h:{a}\""),
            1,
        );
        first.replacen("name = \"b\"", &at(b), 1)
    };
    read(&with(1, 2));
    assert_refused(
        &with(7, 7),
        "",
        "\"rdma:h:7\"\nlcores = [0]\n",
        "engine.listen",
        &["for the second time"],
        "a port of its own",
    );
}

#[test]
fn both_ends_of_a_lane_are_counted() {
    let config = read(PAIR);
    assert_eq!(
        (config.lanes(0), config.lanes(1)),
        (2, 2),
        "two lcores here, one there, and the other way round"
    );
    assert_eq!(config.budget(0), config.budget(1));
    assert!(budget_bytes(&config.budget(0)) > budget_bytes(&read(LEAST).budget(0)));
    assert_eq!(config.lanes(2), 0, "there is no third engine");
}
