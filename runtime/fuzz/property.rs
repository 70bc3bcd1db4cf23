//! What must hold for any bytes at all. The fuzz target and the replay of its corpus on stable Rust share this one check.

use keyfence::wire::{DecodeError, Frame, Header, decode, encode};

/// The bytes are refused with an error, or are the one encoding of a frame: encoding it again gives the same bytes.
///
/// # Panics
/// If that does not hold, or if the decoder panics.
pub fn one_encoding_or_refused(bytes: &[u8]) -> Result<(), DecodeError> {
    let (header, frame) = decode(bytes)?;
    let mut again = vec![0; bytes.len()];
    let len = encode(&header, &frame, &mut again).expect("what was decoded can be encoded");
    assert_eq!(&again[..len], bytes, "{frame:?} has two encodings");
    // The header alone decodes to the same, however long the frame is.
    assert_eq!(Header::decode(bytes), Ok((frame.kind(), header)));
    if let Frame::Revoke { grants, .. } | Frame::ImportsDropped { grants } = frame {
        assert_eq!(grants.iter().count(), grants.len());
    }
    if let Frame::Ended { contexts } = frame {
        assert_eq!(contexts.iter().count(), contexts.len());
    }
    Ok(())
}
