//! The threads of the two files. They share nothing with the engines but the streams' rings, so a slow disk delays no poll step.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

use keyfence_mempool::sync::Ordering;

use super::board::Board;
use super::plan::Plan;
use super::seat::{Block, ReaderEnds, WriterEnds, give};

/// How long a thread rests when no ring has anything for it.
const REST: Duration = Duration::from_micros(50);

/// Reads the whole file in order and deals its blocks out to the streams; gives its digest, or `None` if the copy stopped before.
///
/// `ends` are borrowed: what comes back after the last block stays in the rings.
pub fn read(
    file: &File,
    plan: &Plan,
    board: &Board,
    ends: &mut [ReaderEnds],
) -> Option<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut at = 0;
    for number in 0..plan.blocks() {
        let mut block = next_empty(plan, board, ends, &mut at)?;
        let len = plan.len(number);
        if let Err(error) = file.read_exact_at(&mut block.bytes[..len], plan.offset(number)) {
            let why = match error.kind() {
                std::io::ErrorKind::UnexpectedEof => "it has become shorter".into(),
                _ => error.to_string(),
            };
            board.fail(format!(
                "reading the file at byte {}: {why}",
                plan.offset(number)
            ));
            return None;
        }
        hasher.update(&block.bytes[..len]);
        (block.number, block.len) = (number, len);
        give(&mut ends[at].outbox, block);
    }
    // One whose size was not the truth, as in /proc, or that has grown since.
    if !matches!(file.read_at(&mut [0], plan.bytes), Ok(0)) {
        let bytes = plan.bytes;
        board.fail(format!(
            "reading the file at byte {bytes}: it has become longer"
        ));
        return None;
    }
    Some(hasher.finalize())
}

/// An empty block of a stream that has room in its window, from the one behind `at` on; sets `at` to that stream. `None` if the copy stops.
fn next_empty(
    plan: &Plan,
    board: &Board,
    ends: &mut [ReaderEnds],
    at: &mut usize,
) -> Option<Block> {
    while !board.is_stopped() {
        for _ in 0..ends.len() {
            *at = (*at + 1) % ends.len();
            let end = &mut ends[*at];
            // No more than a window waits for one stream: its context may be dead for a while.
            if end.outbox.len() < plan.slots
                && let Some(block) = end.spent.pop()
            {
                return Some(block);
            }
        }
        thread::park_timeout(REST);
    }
    None
}

/// Writes every block where it belongs, in the order of arrival, until the file is whole or the copy stops.
pub fn write(file: &File, plan: &Plan, board: &Board, ends: &mut [WriterEnds]) {
    let mut written_bytes = 0;
    while written_bytes < plan.bytes && !board.is_stopped() {
        let before = written_bytes;
        for end in &mut *ends {
            let Some(block) = end.inbox.pop() else {
                continue;
            };
            let offset = plan.offset(block.number);
            if let Err(error) = file.write_all_at(&block.bytes[..block.len], offset) {
                board.fail(format!("writing the copy at byte {offset}: {error}"));
                return;
            }
            written_bytes += block.len as u64;
            // Release: who sees the count sees the file.
            board.written_bytes.store(written_bytes, Ordering::Release);
            give(&mut end.free, block);
        }
        if written_bytes == before {
            thread::park_timeout(REST);
        }
    }
}
