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
    if is_success(last) {
        return Ok(Observed::fail(format!(
            "the {what} behind one that must fail succeeded"
        )));
    }
    Ok(match bench.seen_status(ids[1]) {
        Some(status) if !is_success(status) && !is_flushed(status) && is_flushed(last) => {
            Observed::pass("")
        }
        Some(status) => Observed::fail(format!(
            "the {what} that must fail ended with status {status}, the one behind it with {last}"
        )),
        None => Observed::fail(format!("a failed {what} was not reported")),
    })
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
    Ok(match (is_success(status), lives) {
        (false, true) => {
            Observed::pass("a wrong tag and another queue pair; a second one only with --dangerous")
        }
        (true, false) => Observed::fail("one on another queue pair ended the window"),
        (success, lives) => Observed::fail(format!(
            "one on another queue pair: success {success}, the window lives on {lives}"
        )),
    })
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
        if !bench.opens(&owner.a, rkey, &region)? {
            return Ok(Observed::fail(format!(
                "one through {which} ended with status {status} and ended the window"
            )));
        }
        if is_success(status) {
            return Ok(Observed::fail(format!(
                "one through {which} succeeded, though the window lives on"
            )));
        }
    }
    Ok(Observed::pass(""))
}
