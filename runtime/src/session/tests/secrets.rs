//! The secret and what is drawn from it.

use super::{BOTH, LEFT, Lane, RIGHT, known, secret};
use crate::session::secret::Secret;

#[test]
fn a_secret_is_long_enough_and_shown_by_nothing() {
    for got in [0, 1, 31, 4097] {
        let error = Secret::new(&vec![7; got]).unwrap_err();
        assert_eq!(error.got, got);
        assert!(error.to_string().contains("32 to 4096"), "{error}");
    }
    let text = "correct horse battery staple, 32 and more";
    let secret = Secret::new(text.as_bytes()).unwrap();
    assert_eq!(format!("{secret:?} {secret:#?}"), "Secret(..) Secret(..)");
    // Each byte counts, a line's end too.
    assert_ne!(secret, Secret::new(format!("{text}\n").as_bytes()).unwrap());
    assert_eq!(secret, secret.clone());
    let lane = Lane::first();
    let key = lane.secret.mac_key();
    let shown = format!("{:?} {:?}", lane.connecting, known(BOTH[0], &lane.secret));
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(!shown.contains(&hex) && !shown.contains(&format!("{key:?}")));
}

#[test]
fn r12_nonces_do_not_come_again_and_hang_on_the_secret() {
    let mut drawn = std::collections::BTreeSet::new();
    for secret in [secret(1), secret(2)] {
        for incarnation in [LEFT, RIGHT] {
            for count in 0..1_000 {
                assert!(drawn.insert(secret.nonce(incarnation, count)));
            }
        }
    }
}
