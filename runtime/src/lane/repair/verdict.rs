//! What became of the operations that a break cut off, from what the other end has taken (REQUIREMENTS section 5, "What happens to operations at a break").

/// The work of one request that was posted and not proven executed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CutWork {
    /// A message.
    Message {
        /// Its number on the link.
        number: u32,
    },
    /// The notice behind a write with immediate, which has a message's number.
    Landed {
        /// Its number on the link.
        number: u32,
    },
    /// Bytes of a write.
    Write {
        /// Whether it may be executed twice.
        idempotent: bool,
    },
    /// Bytes of a read.
    Read,
    /// An atomic.
    Atomic,
}

impl CutWork {
    fn number(self) -> Option<u32> {
        match self {
            Self::Message { number } | Self::Landed { number } => Some(number),
            _ => None,
        }
    }

    /// Whether nobody may be told that it was not executed, and it may not be executed twice.
    fn is_plain(self) -> bool {
        match self {
            Self::Write { idempotent } => !idempotent,
            Self::Landed { .. } | Self::Atomic => true,
            Self::Message { .. } | Self::Read => false,
        }
    }

    fn writes(self) -> bool {
        matches!(
            self,
            Self::Write { .. } | Self::Landed { .. } | Self::Atomic
        )
    }
}

/// One request that was cut off, in the order of the posts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cut {
    /// Its operation.
    pub op: u32,
    /// The operation's context.
    pub context: u16,
    /// Bytes of it.
    pub bytes: u32,
    /// What it was to do.
    pub work: CutWork,
    /// Of a message: the slot and the generation of the remote context whose credit it has.
    pub receiver: Option<(u16, u32)>,
}

/// What became of a request, or is to become of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verdict {
    /// It was executed.
    Executed,
    /// It is posted again.
    Repeat,
    /// It was not executed, and is not posted again.
    NotSent,
    /// Nobody knows.
    Indeterminate,
}

/// What is known of one context while the cut is judged; as many as contexts, all default.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Seen {
    /// Whether a request of it is plain and not known to be executed: nothing of it is repeated.
    pub stalled: bool,
    wrote: bool,
}

/// Judges the requests of a cut, last one first, by the number of the last message that the other end took. `seen` has an entry for each context; behind it
/// says which of them are stalled. Messages are numbered modulo 2^32.
pub fn judge(cut: &[Cut], received: u32, seen: &mut [Seen], mut tell: impl FnMut(&Cut, Verdict)) {
    let took = |number: u32| received.wrapping_sub(number) as i32 >= 0;
    // The other end's queue pair executes in order: what stands before a message that came was executed.
    let came = |cut: &Cut| cut.work.number().is_some_and(took);
    let executed = cut.iter().rposition(came).map_or(0, |last| last + 1);
    for one in &cut[executed..] {
        seen[one.context as usize].stalled |= one.work.is_plain();
    }
    for (at, one) in cut.iter().enumerate().rev() {
        let known = &mut seen[one.context as usize];
        let verdict = match one.work {
            _ if at < executed && !matches!(one.work, CutWork::Read | CutWork::Atomic) => {
                Verdict::Executed
            }
            CutWork::Atomic => Verdict::Indeterminate,
            CutWork::Message { .. } if known.stalled => Verdict::NotSent,
            _ if known.stalled => Verdict::Indeterminate,
            // What it would read now may be what a later write of the same context has left.
            CutWork::Read if known.wrote => Verdict::Indeterminate,
            _ => Verdict::Repeat,
        };
        known.wrote |= one.work.writes();
        tell(one, verdict);
    }
}
