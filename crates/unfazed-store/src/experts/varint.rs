//! Numbers of as many bytes as they need (LEB128, as in DWARF and Protocol Buffers).

/// Appends a number.
pub(crate) fn put(bytes: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Takes a number off the front; `None` if there is none, or one that is larger than 32 bits.
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0u32;
    for shift in (0..32).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u32::from(byte & 0x7f);
        if bits != 0 && bits.leading_zeros() < shift {
            return None;
        }
        value |= bits.checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_others_are_refused() {
        let mut bytes = Vec::new();
        let numbers = [0, 1, 127, 128, 300, 1 << 28, (1 << 28) - 1, u32::MAX];
        numbers.iter().for_each(|n| put(&mut bytes, *n));
        let mut rest = &bytes[..];
        assert!(numbers.iter().all(|n| take(&mut rest) == Some(*n)));
        assert!(rest.is_empty() && take(&mut rest).is_none());
        assert_eq!(take(&mut &[0x80, 0x80][..]), None);
        assert_eq!(take(&mut &[0xff, 0xff, 0xff, 0xff, 0x1f][..]), None, "33 bits");
        assert_eq!(take(&mut &[0x80, 0x80, 0x80, 0x80, 0x80, 0x01][..]), None, "too long");
    }
}
