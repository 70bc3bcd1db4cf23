//! Why a join failed, and how the accepting side says so with its refusal.

use keyfence_pmd::ControlError;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::pace::PaceMisfit;
use super::words::{Preface, Request};

/// Why a session with a peer did not come about. Told by [`EngineEvent::JoinRefused`](crate::EngineEvent::JoinRefused).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinRefusal {
    /// Nobody listens on its address, or it has left meanwhile, or no connection to it came about.
    #[error(
        "it is not to be reached; start it, or correct its address or the settings of the path"
    )]
    Unreachable,
    /// It knows no peer of the asking engine's name.
    #[error("it has no peer of this engine's name; add a [[peer]] there")]
    NotConfigured,
    /// The engine at its address is one of another name than the one that was looked for.
    #[error("an engine of another name answers at its address; correct the name or the address")]
    WrongName,
    /// What it says is not under the secret that this engine shares with it, or not about this lane: another secret, or words that somebody
    /// else said, kept or changed.
    #[error(
        "what it says is not authentic; is its secret_file the same as here, to the byte? If so, somebody else speaks in its name"
    )]
    Unauthenticated,
    /// Both engines are of the same side of a lane: the one whose name sorts first asks, the other one accepts.
    #[error("it takes the wrong side of a lane; the engine whose name sorts first asks")]
    Role,
    /// The two speak different versions of the protocol.
    #[error("it speaks version {theirs} of the protocol, this engine {ours}; use the same release")]
    Version {
        /// This engine's.
        ours: u16,
        /// The peer's.
        theirs: u16,
    },
    /// The two have a different number of lanes between two lcores.
    #[error("it has limits.lanes = {theirs}, this engine {ours}; they must be the same")]
    Lanes {
        /// This engine's.
        ours: u16,
        /// The peer's.
        theirs: u16,
    },
    /// The two count the repairs of a lane differently.
    #[error(
        "it is at repair {theirs} of a lane, this engine at {ours} (modulo 256): it has started again, or lost the session; that ends here by timeouts.reconnect and the two join anew, so there is nothing to do; if that does not help, use the same release"
    )]
    Repair {
        /// This engine's count, modulo 256.
        ours: u8,
        /// The peer's, modulo 256.
        theirs: u8,
    },
    /// It has more lcores than this engine was told and has set memory aside for.
    #[error(
        "it has {claimed} lcores, and lcores of its [[peer]] here is {configured}; make them the same"
    )]
    Lcores {
        /// What this engine was told.
        configured: u16,
        /// What the peer says.
        claimed: u16,
    },
    /// It still has a session, or settles the last one.
    #[error("it has not settled the last session yet; nothing to do if this ends")]
    Busy,
    /// It is shutting down, or has ended the session that the lane is asked for.
    #[error("it has ended this session, or is shutting down")]
    Ended,
    /// The session that is being made has this lane already.
    #[error("it has this lane already; a request was said twice")]
    Duplicate,
    /// It could not make a lane.
    #[error("it has no room for a lane; its own event says what it lacks")]
    Full,
    /// The device of this engine refused a call.
    #[error("device: {0}")]
    Device(ControlError),
    /// Its hello on a lane has other names than its connection, or sizes that no lane works with.
    #[error("its hello does not fit its connection; use the same release")]
    Hello,
    /// What this engine may have in flight on a lane takes longer than the peer's fence.
    #[error(
        "limits.lane_bytes_in_flight / limits.slowest_rate here against timeouts.fence there: {0}; lower the first, or raise the last"
    )]
    OurPace(PaceMisfit),
    /// What the peer may have in flight on a lane takes longer than this engine's fence.
    #[error(
        "limits.lane_bytes_in_flight / limits.slowest_rate there against timeouts.fence here: {0}; lower the first, or raise the last"
    )]
    TheirPace(PaceMisfit),
    /// Another start of it answered than before.
    #[error("it has been started again meanwhile")]
    Restarted,
    /// Not every lane stood in time: an answer or a hello never came.
    #[error(
        "not all lanes stood after {waited_ns} ns (timeouts.reconnect); is it polled, and its control side called?"
    )]
    Timeout {
        /// How long was waited.
        waited_ns: u64,
    },
    /// A lane broke before all stood. It is all that is seen of a peer that refuses once the connection stands: its own event says why.
    #[error("a lane broke before all of them stood; what the other engine tells may say why")]
    LaneBroke,
    /// What it said can't be understood, or it gave no reason.
    #[error("what it said with its answer is not of this protocol")]
    Malformed,
}

impl From<ControlError> for JoinRefusal {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Unreachable(_) => Self::Unreachable,
            error => Self::Device(error),
        }
    }
}

/// What an engine has refused and admitted, in all; replays and forgeries are among the refused. Read by
/// [`Engine::admissions`](crate::Engine::admissions).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct AdmissionStats {
    /// Requests for a lane that were refused.
    pub requests_refused: u64,
    /// Answers to our own requests that were refused.
    pub replies_refused: u64,
    /// Hellos that were refused.
    pub hellos_refused: u64,
    /// Lanes admitted.
    pub lanes_admitted: u64,
    /// Sessions that ended before the other side had proven itself, whoever asked. Each has cost a queue pair for its time, and nothing since.
    pub sessions_unproven: u64,
}

/// The private data of a refusal. Under no MAC: it ends nothing but the try.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Refused {
    preface: Preface,
    code: U16,
    /// The number of the refusing side that the other's differs from, if that is why; else 0.
    ours: U16,
}

const UNEXPLAINED: u16 = 0;
const NOT_CONFIGURED: u16 = 1;
const VERSIONS_DIFFER: u16 = 2;
const LANES_DIFFER: u16 = 3;
const BUSY: u16 = 4;
const ENDED: u16 = 5;
const FULL: u16 = 6;
const WRONG_NAME: u16 = 7;
const ROLE: u16 = 8;
const DUPLICATE: u16 = 9;
const REPAIRS_DIFFER: u16 = 10;

impl Refused {
    /// What is said to a peer that is refused.
    pub fn new(why: &JoinRefusal) -> Self {
        let ours = match *why {
            JoinRefusal::Lanes { ours, .. } => ours,
            JoinRefusal::Repair { ours, .. } => ours.into(),
            _ => 0,
        };
        let code = match why {
            JoinRefusal::NotConfigured => NOT_CONFIGURED,
            JoinRefusal::Version { .. } => VERSIONS_DIFFER,
            JoinRefusal::Lanes { .. } => LANES_DIFFER,
            JoinRefusal::Busy => BUSY,
            JoinRefusal::Ended => ENDED,
            JoinRefusal::Full => FULL,
            JoinRefusal::WrongName => WRONG_NAME,
            JoinRefusal::Role => ROLE,
            JoinRefusal::Duplicate => DUPLICATE,
            JoinRefusal::Repair { .. } => REPAIRS_DIFFER,
            _ => UNEXPLAINED,
        };
        Self {
            preface: Preface::ours(),
            code: code.into(),
            ours: ours.into(),
        }
    }

    /// What a refusal means to who asked with `request`.
    pub(super) fn read(private: &[u8], request: &Request) -> JoinRefusal {
        // Whoever refuses says something: this is a device's own report of a connection that failed.
        if private.is_empty() {
            return JoinRefusal::Unreachable;
        }
        if let Err(why) = Preface::check(private) {
            return why;
        }
        let Ok((refused, _)) = Self::ref_from_prefix(private) else {
            return JoinRefusal::Malformed;
        };
        match refused.code.get() {
            NOT_CONFIGURED => JoinRefusal::NotConfigured,
            LANES_DIFFER => JoinRefusal::Lanes {
                ours: request.siblings(),
                theirs: refused.ours.get(),
            },
            REPAIRS_DIFFER => match u8::try_from(refused.ours.get()) {
                Ok(theirs) => JoinRefusal::Repair {
                    ours: request.repair,
                    theirs,
                },
                Err(_) => JoinRefusal::Malformed,
            },
            BUSY => JoinRefusal::Busy,
            ENDED => JoinRefusal::Ended,
            FULL => JoinRefusal::Full,
            WRONG_NAME => JoinRefusal::WrongName,
            ROLE => JoinRefusal::Role,
            DUPLICATE => JoinRefusal::Duplicate,
            _ => JoinRefusal::Malformed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::VERSION;
    use zerocopy::FromZeros;

    /// A request for the second of two lanes, made anew five times.
    fn asked() -> Request {
        let mut request = Request::new_zeroed();
        request.lane = Request::lane_byte(1, 2).unwrap();
        request.repair = 5;
        request
    }

    fn read(said: &Refused) -> JoinRefusal {
        Refused::read(said.as_bytes(), &asked())
    }

    #[test]
    fn a_refusal_is_understood_as_it_was_meant() {
        for why in [
            JoinRefusal::NotConfigured,
            JoinRefusal::Busy,
            JoinRefusal::Ended,
            JoinRefusal::Full,
            JoinRefusal::WrongName,
            JoinRefusal::Role,
            JoinRefusal::Duplicate,
        ] {
            assert_eq!(read(&Refused::new(&why)), why, "{why}");
        }
        let lanes = JoinRefusal::Lanes { ours: 4, theirs: 2 };
        let said = Refused::new(&lanes);
        let heard = JoinRefusal::Lanes { ours: 2, theirs: 4 };
        assert_eq!(read(&said), heard);
        let (ours, theirs) = (200, 5);
        let mut said = Refused::new(&JoinRefusal::Repair { ours, theirs });
        let (ours, theirs) = (theirs, ours);
        assert_eq!(read(&said), JoinRefusal::Repair { ours, theirs });
        // More than a count modulo 256 can be.
        said.ours = 256.into();
        assert_eq!(read(&said), JoinRefusal::Malformed);
    }

    #[test]
    fn who_says_nothing_was_not_reached() {
        assert_eq!(Refused::read(&[], &asked()), JoinRefusal::Unreachable);
    }

    #[test]
    fn a_refusal_of_another_protocol_or_version_is_no_reason() {
        let said = Refused::new(&JoinRefusal::Busy);
        let mut bytes = said.as_bytes().to_vec();
        bytes[2] += 1;
        let other = JoinRefusal::Version {
            ours: VERSION,
            theirs: VERSION + 1,
        };
        // Whatever it says: also nothing more.
        assert_eq!(Refused::read(&bytes, &asked()), other);
        assert_eq!(Refused::read(&bytes[..4], &asked()), other);
        bytes[0] = 0;
        assert_eq!(Refused::read(&bytes, &asked()), JoinRefusal::Malformed);
        assert_eq!(Refused::read(&bytes[..1], &asked()), JoinRefusal::Malformed);
        let silent = Refused::new(&JoinRefusal::LaneBroke);
        assert_eq!(read(&silent), JoinRefusal::Malformed);
    }
}
