//! Why a command was not sent.

use crate::wire::NameError;

/// Why a command was not sent. `T` is what was moved into it: it comes back.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError<T = ()> {
    /// The lcore has not taken the commands before it, or takes none since the client has left its events unread.
    #[error(
        "{commands} commands wait for the lcore; take events with poll_event, then try again, or raise ClientConfig::commands"
    )]
    Full {
        /// Commands that the ring holds.
        commands: usize,
        /// What was moved into the command.
        back: T,
    },
    /// The context has ended, or could not be opened.
    #[error("the client's context has ended; open another")]
    Closed(T),
}

impl<T> CommandError<T> {
    /// What was moved into the command.
    pub fn into_inner(self) -> T {
        match self {
            Self::Full { back, .. } | Self::Closed(back) => back,
        }
    }
}

/// Why a look-up was not sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientLookupError {
    /// The name can't be one.
    #[error(transparent)]
    Name(#[from] NameError),
    /// No command could be sent.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// Why a message was not sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientSendError {
    /// It is longer than a command holds.
    #[error(
        "a message of {len} bytes, {most} fit in a command; send a longer one from a buffer with send_from"
    )]
    TooLong {
        /// Bytes of the message.
        len: usize,
        /// Bytes that fit.
        most: usize,
    },
    /// No command could be sent.
    #[error(transparent)]
    Command(#[from] CommandError),
}
