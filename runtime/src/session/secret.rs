//! The secret that two engines share.

use core::fmt;

use constant_time_eq::constant_time_eq_32;

use crate::ids::Incarnation;

/// A number that is drawn once.
pub(crate) type Nonce = [u8; 16];

/// What two engines share to know each other by (R12). Holds keys that are derived from it, never the secret itself, and shows neither: not by `Debug`, and
/// in no error. Its memory is not wiped.
///
/// ```
/// use keyfence::Secret;
/// let secret = Secret::new(&[7; Secret::LEAST_BYTES])?;
/// assert_eq!(format!("{secret:?}"), "Secret(..)");
/// # Ok::<(), keyfence::SecretError>(())
/// ```
#[derive(Clone)]
pub struct Secret {
    mac: [u8; 32],
    nonces: [u8; 32],
}

/// Why some bytes are no secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a secret of {got} bytes; it has {} to {}, from a random source",
    Secret::LEAST_BYTES,
    Secret::MOST_BYTES
)]
pub struct SecretError {
    /// How many there are.
    pub got: usize,
}

impl Secret {
    /// The fewest bytes of a secret: what a MAC discloses can be searched offline, so it must not be a word that somebody could think of.
    pub const LEAST_BYTES: usize = 32;
    /// The most.
    pub const MOST_BYTES: usize = 4096;

    /// The secret of these bytes, each of which counts, a line's end too.
    ///
    /// # Errors
    /// [`SecretError`] if they are too few or too many.
    pub fn new(bytes: &[u8]) -> Result<Self, SecretError> {
        if !(Self::LEAST_BYTES..=Self::MOST_BYTES).contains(&bytes.len()) {
            return Err(SecretError { got: bytes.len() });
        }
        Ok(Self::derived(bytes))
    }

    /// Of engines that share none: anybody has it, so it protects nothing. Shorter than each real one, so it is nobody's.
    pub(crate) fn none() -> Self {
        Self::derived(&[])
    }

    fn derived(bytes: &[u8]) -> Self {
        Self {
            mac: blake3::derive_key("keyfence admission, MAC, 2", bytes),
            nonces: blake3::derive_key("keyfence admission, nonces, 2", bytes),
        }
    }

    /// The key of MACs.
    pub(super) fn mac_key(&self) -> &[u8; 32] {
        &self.mac
    }

    /// Number `count` of an engine's start. Who has no secret can't foretell it, and it does not come again as long as no incarnation does.
    pub(crate) fn nonce(&self, incarnation: Incarnation, count: u64) -> Nonce {
        let mut hasher = blake3::Hasher::new_keyed(&self.nonces);
        hasher.update(&incarnation.0.to_le_bytes());
        hasher.update(&count.to_le_bytes());
        let mut nonce = Nonce::default();
        hasher.finalize_xof().fill(&mut nonce);
        nonce
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        constant_time_eq_32(&self.mac, &other.mac)
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
