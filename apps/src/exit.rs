//! Exit codes, which scripts rely on.

use std::process::ExitCode;

/// How the program ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// 0: all went well.
    Good,
    /// 1: a check failed, a peer was not reached in time, an lcore died.
    CheckFailed,
    /// 2: something was wrong before traffic: usage, configuration, memory, cores, device, permission.
    BadStart,
    /// 130 or 143: a second signal, of this number.
    Signal(u8),
}

impl Exit {
    /// The code that the operating system gets.
    pub const fn code(self) -> u8 {
        match self {
            Self::Good => 0,
            Self::CheckFailed => 1,
            Self::BadStart => 2,
            Self::Signal(number) => 128u8.saturating_add(number),
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_are_what_scripts_expect() {
        let signals = [
            Exit::Signal(libc::SIGINT as u8),
            Exit::Signal(libc::SIGTERM as u8),
        ];
        let exits = [
            Exit::Good,
            Exit::CheckFailed,
            Exit::BadStart,
            signals[0],
            signals[1],
        ];
        assert_eq!(exits.map(Exit::code), [0, 1, 2, 130, 143]);
    }
}
