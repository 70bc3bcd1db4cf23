//! The MACs of an admission: keyed BLAKE3 of 128 bits over all that was said before.

use constant_time_eq::constant_time_eq_16;
use zerocopy::IntoBytes;

use super::secret::Secret;
use super::words::{Reply, Request};
use crate::wire::{self, Frame, HEADER_BYTES, Header, Hello, MAX_CONTROL_BYTES, Role};

/// A MAC.
pub(super) type Mac = [u8; 16];

/// What is said with a MAC, and by whom: its first byte, so that no words of one side are the other's, nor another step's.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Step {
    Reply = 1,
    ConnectingHello = 2,
    AcceptingHello = 3,
}

impl Step {
    /// Of a hello that `role` says.
    fn hello_of(role: Role) -> Self {
        match role {
            Role::Connecting => Self::ConnectingHello,
            Role::Accepting => Self::AcceptingHello,
        }
    }
}

/// What both sides of a lane agree on before its hellos.
pub(super) struct Transcript<'a> {
    pub secret: &'a Secret,
    pub connecting_name: &'a str,
    pub accepting_name: &'a str,
    pub request: &'a Request,
    pub reply: &'a Reply,
}

impl Transcript<'_> {
    pub fn of_reply(&self) -> Mac {
        self.mac(Step::Reply, &[])
    }

    /// Of all words of a hello that `role` says, but the MAC; `None` if it is too long to be one.
    pub fn of_hello(&self, role: Role, hello: &Hello<'_>) -> Option<Mac> {
        let unsigned = Hello {
            mac: Mac::default(),
            ..*hello
        };
        let mut bytes = [0; MAX_CONTROL_BYTES];
        let len = wire::encode(&Header::default(), &Frame::Hello(unsigned), &mut bytes).ok()?;
        Some(self.mac(Step::hello_of(role), &bytes[HEADER_BYTES..len]))
    }

    /// Each part has a fixed length or says it, so no two transcripts are the same bytes.
    fn mac(&self, step: Step, hello: &[u8]) -> Mac {
        let mut hasher = blake3::Hasher::new_keyed(self.secret.mac_key());
        hasher.update(&[step as u8]);
        for name in [self.connecting_name, self.accepting_name] {
            hasher.update(&(name.len() as u64).to_le_bytes());
            hasher.update(name.as_bytes());
        }
        hasher.update(self.request.as_bytes());
        hasher.update(self.reply.said().as_bytes());
        hasher.update(hello);
        let mut mac = Mac::default();
        hasher.finalize_xof().fill(&mut mac);
        mac
    }
}

/// In a time that does not tell where they differ.
pub(super) fn is_same(one: &Mac, other: &Mac) -> bool {
    constant_time_eq_16(one, other)
}
