//! What the books of the devices say about a range of memory that is, or should be, nobody's any more. The books know what crossed the
//! device contract and none of the runtime's tables.

use core::ops::Range;

use super::board::Board;
use super::tally::Faults;

/// Why a range is looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Occasion {
    /// A buffer was handed out.
    Reuse,
    /// A grant of it ended as `Zapped`.
    Zapped,
    /// A flush returned that was asked for after its grant was revoked.
    Flushed,
}

/// Looks a range of `side`'s memory up, and counts and notes what is found.
pub fn inspect(board: &Board, side: usize, range: &Range<u64>, occasion: Occasion) {
    let ledger = board.sides[side].ledger();
    let keys = ledger.live_keys(range.clone());
    // At a flush's return the grants of the range may be quarantined, and the peer's operations were waited for by the fence.
    let own = match occasion {
        Occasion::Flushed => 0,
        _ => ledger.open_work(range.clone()),
    };
    // A broken lane's end proves the key's, whether its holder has heard of it or not; so does a lost session's.
    let theirs = match occasion {
        Occasion::Zapped if board.wishes.is_broken() || board.is_lossy() => 0,
        Occasion::Zapped => board.sides[1 - side].ledger().open_remote(range.clone()),
        _ => 0,
    };
    if keys + own + theirs == 0 {
        return;
    }
    let key = ledger.first_live_key(range.clone());
    let work = ledger.first_open_work(range.clone());
    let mut tally = board.sides[side].tally();
    add(&mut tally.faults, keys, own + theirs);
    tally.note(|| {
        let mut text = format!(
            "{occasion:?}: {keys} keys, {own} own and {theirs} peer's requests over {:#x}..{:#x}",
            range.start, range.end
        );
        if let Some(key) = key {
            text += &format!("; {key}");
        }
        if let Some(work) = work {
            text += &format!("; {work}");
        }
        text
    });
}

fn add(faults: &mut Faults, keys: usize, requests: usize) {
    faults.stale_keys += keys as u64;
    faults.open_wrs += requests as u64;
}
