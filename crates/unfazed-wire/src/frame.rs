//! Frames: a length (u32, little endian) and that many bytes of postcard.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest frame. A prompt of a million tokens takes at most 5 MB; this leaves room and bounds what a broken peer can
/// make us allocate.
pub const MAX_BYTES: usize = 64 << 20;

/// Bytes of the length in front of each frame.
pub const HEADER_BYTES: usize = 4;

/// A frame that cannot be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Longer than [`MAX_BYTES`].
    #[error("a frame of {0} bytes is over the limit of {MAX_BYTES}")]
    TooLong(usize),
    /// The bytes are not a message.
    #[error("a frame does not decode: {0}")]
    Malformed(#[from] postcard::Error),
}

/// Appends a message as a frame.
pub fn encode<T: Serialize>(message: &T, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let mut bytes = postcard::to_extend(message, std::mem::take(out))?;
    let len = bytes.len() - start - HEADER_BYTES;
    if len > MAX_BYTES {
        bytes.truncate(start);
        *out = bytes;
        return Err(FrameError::TooLong(len));
    }
    bytes[start..start + HEADER_BYTES].copy_from_slice(&(len as u32).to_le_bytes());
    *out = bytes;
    Ok(())
}

/// Length of the frame whose header this is.
pub fn length(header: [u8; HEADER_BYTES]) -> Result<usize, FrameError> {
    let len = u32::from_le_bytes(header) as usize;
    if len > MAX_BYTES { Err(FrameError::TooLong(len)) } else { Ok(len) }
}

/// Decodes the bytes after the header.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, FrameError> {
    Ok(postcard::from_bytes(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RequestId, ToEngine};

    #[test]
    fn a_message_survives_its_frame() {
        let mut out = Vec::new();
        let message = ToEngine::Cancel(RequestId(u64::MAX));
        encode(&message, &mut out).unwrap();
        let (header, body) = out.split_first_chunk().unwrap();
        assert_eq!(length(*header).unwrap(), body.len());
        assert_eq!(decode::<ToEngine>(body).unwrap(), message);
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_it_is_allocated() {
        assert!(matches!(length(u32::MAX.to_le_bytes()), Err(FrameError::TooLong(_))));
    }

    #[test]
    fn every_prefix_and_bit_flip_of_a_frame_decodes_or_errs() {
        let mut out = Vec::new();
        encode(&ToEngine::Cancel(RequestId(300)), &mut out).unwrap();
        for end in 0..out.len() {
            let _ = decode::<ToEngine>(&out[HEADER_BYTES.min(end)..end]);
            for bit in 0..8 {
                let mut flipped = out.clone();
                flipped[end] ^= 1 << bit;
                let _ = decode::<ToEngine>(&flipped[HEADER_BYTES..]);
            }
        }
    }
}
