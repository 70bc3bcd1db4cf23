//! What the driver refuses before posting, or never posts: done with queue pairs of its own, so that the adapter itself answers. The error is a
//! check that could not be done as it should, which counts as failed.

use super::bench::{Bench, Link, is_flushed, is_success, next_tag, text};
use crate::probe::Observed;
use crate::verbs::config::VerbsConfig;
use crate::verbs::sys::{Mw, SendOp};

type Result = std::result::Result<Observed, String>;

/// A bind, then an invalidation, that fails unsignaled in the middle of a chain.
pub(super) fn chain_stops(config: &VerbsConfig) -> Result {
    let binds = chain_of_binds(config)?;
    match binds.verdict {
        crate::probe::Verdict::Pass => chain_of_invalidations(config),
        _ => Ok(binds),
    }
}

fn chain_of_binds(config: &VerbsConfig) -> Result {
    let mut bench = Bench::new(config)?;
    let pd = bench.domain()?;
    let (open, closed) = (bench.region(&pd, true)?, bench.region(&pd, false)?);
    let link = bench.link(&pd, &pd)?;
    let windows = windows(&pd)?;
    let bind = |at: usize, region| {
        let window: &Mw = &windows[at];
        bench.bind(window, region, next_tag(window.rkey()))
    };
    // No window may be bound to the second one's region.
    let chain = [bind(0, &open), bind(1, &closed), bind(2, &open)];
    stops(&mut bench, &link, &chain, "bind")
}

fn chain_of_invalidations(config: &VerbsConfig) -> Result {
    let mut bench = Bench::new(config)?;
    let pd = bench.domain()?;
    let open = bench.region(&pd, true)?;
    let link = bench.link(&pd, &pd)?;
    let mut keys = Vec::new();
    let mut windows = Vec::new();
    for _ in 0..3 {
        let (window, rkey) = bench.open(&link.b, &pd, &open)?;
        windows.push(window);
        keys.push(rkey);
    }
    // Not one that was ended before: that can stop the host. This window is live, under another tag.
    keys[1] = next_tag(keys[1]);
    let chain = [keys[0], keys[1], keys[2]].map(SendOp::Invalidate);
    let went = stops(&mut bench, &link, &chain, "invalidation");
    drop(windows);
    went
}

fn windows(pd: &std::sync::Arc<crate::verbs::sys::Pd>) -> std::result::Result<Vec<Mw>, String> {
    (0..3).map(|_| Mw::alloc(pd).map_err(text)).collect()
}

/// Of three requests, the middle one of which must fail: it is reported, and the last one is not done.
fn stops(bench: &mut Bench, link: &Link, chain: &[SendOp<'_>; 3], what: &str) -> Result {
    let Some(ids) = bench.post(&link.b, chain, None) else {
        let why =
            format!("the adapter's library refuses a wrong {what} before the adapter sees it");
        return Ok(Observed::skip(why));
    };
    let last = bench.status(ids[2])?;
    Ok(judge_chain(what, bench.seen_status(ids[1]), last))
}

/// By how the one that must fail ended, as far as that was reported when the last one was, and by how the last one did.
fn judge_chain(what: &str, failing: Option<u32>, last: u32) -> Observed {
    if is_success(last) {
        return Observed::fail(format!("the {what} behind one that must fail succeeded"));
    }
    match failing {
        Some(status) if !is_success(status) && !is_flushed(status) && is_flushed(last) => {
            Observed::pass("")
        }
        Some(status) => Observed::fail(format!(
            "the {what} that must fail ended with status {status}, the one behind it with {last}"
        )),
        None => Observed::fail(format!("a failed {what} was not reported")),
    }
}

/// Invalidations that end nothing of their queue pair: with a wrong tag, and on another queue pair. The window is live in both, so that a host
/// that does not stand a second invalidation is not endangered.
pub(super) fn invalidate_checks(config: &VerbsConfig) -> Result {
    let mut bench = Bench::new(config)?;
    let pd = bench.domain()?;
    let region = bench.region(&pd, true)?;
    let wrong = bench.link(&pd, &pd)?;
    let (_window, rkey) = bench.open(&wrong.b, &pd, &region)?;
    let status = bench.run(&wrong.b, SendOp::Invalidate(next_tag(rkey)), None)?;
    if is_success(status) {
        return Ok(Observed::fail("one with a wrong tag succeeded"));
    }
    let (owner, foreign) = (bench.link(&pd, &pd)?, bench.link(&pd, &pd)?);
    let (_window, rkey) = bench.open(&owner.b, &pd, &region)?;
    let status = bench.run(&foreign.b, SendOp::Invalidate(rkey), None)?;
    let lives = bench.opens(&owner.a, rkey, &region)?;
    Ok(judge_foreign(status, lives))
}

/// By how an invalidation on another queue pair ended, and by whether the window's rightful holder can still use it.
fn judge_foreign(status: u32, lives: bool) -> Observed {
    match (is_success(status), lives) {
        (false, true) => {
            Observed::pass("a wrong tag and another queue pair; a second one only with --dangerous")
        }
        (true, false) => Observed::fail("one on another queue pair ended the window"),
        (true, true) => Observed::fail("one on another queue pair succeeded and ended nothing"),
        (false, false) => Observed::fail(format!(
            "one on another queue pair ended with status {status} and ended the window"
        )),
    }
}

/// Two invalidations of one key. **Stops a host with Soft-RoCE of kernel 6.1.**
pub(super) fn double_invalidation(config: &VerbsConfig) -> Result {
    let mut bench = Bench::new(config)?;
    let pd = bench.domain()?;
    let region = bench.region(&pd, true)?;
    let link = bench.link(&pd, &pd)?;
    let (_window, rkey) = bench.open(&link.b, &pd, &region)?;
    let first = bench.run(&link.b, SendOp::Invalidate(rkey), None)?;
    if !is_success(first) {
        return Err(format!("the first one ended with status {first}"));
    }
    let second = bench.run(&link.b, SendOp::Invalidate(rkey), None)?;
    Ok(match is_success(second) {
        false => Observed::pass(format!("it ended with status {second}")),
        true => Observed::fail("it succeeded"),
    })
}

/// A peer that keeps to no rules, first on another queue pair of the window's domain, then on one of another domain.
pub(super) fn send_with_inv_scope(config: &VerbsConfig) -> Result {
    let mut bench = Bench::new(config)?;
    let pd = bench.domain()?;
    let region = bench.region(&pd, true)?;
    let elsewhere = bench.domain()?;
    for (domain, which) in [
        (&elsewhere, "a queue pair of another protection domain"),
        (&pd, "another queue pair of the same domain"),
    ] {
        let owner = bench.link(&pd, &pd)?;
        let foreign = bench.link(&pd, domain)?;
        let (_window, rkey) = bench.open(&owner.b, &pd, &region)?;
        if !bench.opens(&owner.a, rkey, &region)? {
            return Err("the rightful holder's write was refused".into());
        }
        bench.receive(&foreign.b)?;
        let sent = match bench.send_with_invalidation(&foreign.a, rkey) {
            Ok(sent) => sent,
            Err(error) => {
                let why = format!("the adapter's library does not send it ({error})");
                return Ok(Observed::skip(why));
            }
        };
        let status = bench.status(sent)?;
        let lives = bench.opens(&owner.a, rkey, &region)?;
        if let Some(breach) = judge_message(which, status, lives) {
            return Ok(breach);
        }
    }
    Ok(Observed::pass(""))
}

/// By how the SEND_WITH_INV ended, and by whether the window's rightful holder can still use it.
fn judge_message(which: &str, status: u32, lives: bool) -> Option<Observed> {
    if !lives {
        return Some(Observed::fail(format!(
            "one through {which} ended with status {status} and ended the window"
        )));
    }
    is_success(status).then(|| {
        Observed::fail(format!(
            "one through {which} succeeded, though the window lives on"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Verdict::{Fail, Pass};

    const GOOD: u32 = 0;
    const BIND_ERROR: u32 = 6;
    const FLUSHED: u32 = 5;

    #[test]
    fn a_chain_stops_if_its_failure_is_reported_and_nothing_behind_it_is_done() {
        let verdict = |failing, last| judge_chain("bind", failing, last).verdict;
        assert_eq!(verdict(Some(BIND_ERROR), FLUSHED), Pass);
        // It went on; the failure was swallowed; there was none; the last one failed by itself.
        assert_eq!(verdict(Some(BIND_ERROR), GOOD), Fail);
        assert_eq!(verdict(None, GOOD), Fail);
        assert_eq!(verdict(None, FLUSHED), Fail);
        assert_eq!(verdict(Some(GOOD), FLUSHED), Fail);
        assert_eq!(verdict(Some(FLUSHED), FLUSHED), Fail);
        assert_eq!(verdict(Some(BIND_ERROR), BIND_ERROR), Fail);
    }

    #[test]
    fn a_foreign_invalidation_must_fail_and_end_nothing() {
        assert_eq!(judge_foreign(BIND_ERROR, true).verdict, Pass);
        assert_eq!(judge_foreign(BIND_ERROR, false).verdict, Fail);
        assert_eq!(judge_foreign(GOOD, true).verdict, Fail);
        assert_eq!(judge_foreign(GOOD, false).verdict, Fail);
    }

    #[test]
    fn a_foreign_message_must_fail_and_end_nothing() {
        let breach = |status, lives| judge_message("it", status, lives).map(|of| of.verdict);
        assert_eq!(breach(BIND_ERROR, true), None);
        assert_eq!(breach(BIND_ERROR, false), Some(Fail));
        assert_eq!(breach(GOOD, true), Some(Fail));
        assert_eq!(breach(GOOD, false), Some(Fail));
    }
}
