//! Ids that nobody can guess.

use std::fmt;

use super::error::ApiError;

/// Hexadecimal digits of an id.
const DIGITS: usize = 32;

/// 128 random bits, shown as 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RandomId(u128);

impl RandomId {
    /// A new one; fails where the system has no randomness.
    pub(crate) fn new() -> Result<RandomId, ApiError> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| ApiError::internal(format!("no random id: {error}")))?;
        Ok(RandomId(u128::from_ne_bytes(bytes)))
    }

    /// The same as a number.
    pub(crate) fn number(self) -> u128 {
        self.0
    }

    /// The id of a number.
    pub(crate) fn of(number: u128) -> RandomId {
        RandomId(number)
    }

    /// Reads an id as it is shown, and nothing else.
    pub(crate) fn parse(text: &str) -> Option<RandomId> {
        let digits = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if text.len() != DIGITS || !digits {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(RandomId)
    }
}

impl fmt::Display for RandomId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0DIGITS$x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_shown_and_in_no_other_form() {
        let id = RandomId(0xab);
        let shown = id.to_string();
        assert_eq!(shown, "000000000000000000000000000000ab");
        assert_eq!(RandomId::parse(&shown), Some(id));
        for other in
            ["", "ab", "0xab", &shown.to_uppercase(), &format!("{shown}0"), &format!("+{}", &shown[1..])]
        {
            assert_eq!(RandomId::parse(other), None, "{other}");
        }
    }
}
