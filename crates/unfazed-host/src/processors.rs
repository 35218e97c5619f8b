//! Sets of processors, and how they are written: lists (`0-3,8`, as in `/sys` and `taskset -c`) and masks (`0x10f`, as in
//! `taskset`).

use std::collections::BTreeSet;
use std::fmt;

/// Processors by the system's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processors(BTreeSet<usize>);

/// Text that names no processors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProcessorsError {
    /// Not a list.
    #[error("{0:?} is no list of processors such as 0-3,8")]
    List(String),
    /// Not a mask.
    #[error("{0:?} is no mask of processors in hexadecimal digits such as 0x10f (processors 0 to 3 and 8)")]
    Mask(String),
    /// A number that no system has.
    #[error("there is no processor {0}: numbers end at {max}", max = Processors::MAX)]
    Number(usize),
}

impl Processors {
    /// Largest number: a bound for what is parsed, beyond any machine.
    pub const MAX: usize = 8191;

    /// A list of numbers and ranges, `0-3,8`.
    pub fn parse_list(text: &str) -> Result<Processors, ProcessorsError> {
        let error = || ProcessorsError::List(text.to_owned());
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| error());
        let mut processors = BTreeSet::new();
        for part in text.trim().split(',') {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if last > Processors::MAX {
                return Err(ProcessorsError::Number(last));
            }
            if first > last {
                return Err(error());
            }
            processors.extend(first..=last);
        }
        Ok(Processors(processors))
    }

    /// A mask in hexadecimal digits, with or without `0x`; the lowest bit is processor 0.
    pub fn parse_mask(text: &str) -> Result<Processors, ProcessorsError> {
        let error = || ProcessorsError::Mask(text.to_owned());
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
        if digits.is_empty() {
            return Err(error());
        }
        let mut processors = BTreeSet::new();
        for (place, digit) in digits.chars().rev().enumerate() {
            let digit = digit.to_digit(16).ok_or_else(error)?;
            processors.extend((0..4).filter(|bit| digit >> bit & 1 == 1).map(|bit| 4 * place + bit));
        }
        match processors.last() {
            None => Err(error()),
            Some(&last) if last > Processors::MAX => Err(ProcessorsError::Number(last)),
            Some(_) => Ok(Processors(processors)),
        }
    }

    /// Their numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one is among them.
    pub fn contains(&self, processor: usize) -> bool {
        self.0.contains(&processor)
    }

    /// Those that are not among others.
    #[must_use]
    pub fn without(&self, others: &Processors) -> Processors {
        Processors(self.0.difference(&others.0).copied().collect())
    }
}

impl FromIterator<usize> for Processors {
    fn from_iter<I: IntoIterator<Item = usize>>(processors: I) -> Processors {
        Processors(processors.into_iter().collect())
    }
}

impl fmt::Display for Processors {
    /// As a list.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if(|next| *next == last + 1) {
                last = next;
            }
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_again(numbers in prop::collection::btree_set(0usize..200, 1..40)) {
            let processors: Processors = numbers.iter().copied().collect();
            prop_assert_eq!(Processors::parse_list(&processors.to_string()), Ok(processors.clone()));
            let mut digits = [0u8; 50];
            for number in numbers {
                digits[49 - number / 4] |= 1 << (number % 4);
            }
            let mask: String = digits.iter().map(|digit| format!("{digit:x}")).collect();
            prop_assert_eq!(Processors::parse_mask(&mask), Ok(processors));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[-0-9a-fx, ]{0,40}") {
            for processors in [Processors::parse_list(&text), Processors::parse_mask(&text)].into_iter().flatten() {
                prop_assert!(!processors.is_empty() && processors.len() <= Processors::MAX + 1);
            }
        }
    }

    #[test]
    fn lists_and_masks_are_those_of_other_programs() {
        let both = [Processors::parse_list(" 0-3,8\n").unwrap(), Processors::parse_mask("0x10F").unwrap()];
        assert_eq!(both[0], both[1]);
        assert_eq!(both[0].to_string(), "0-3,8");
        for text in ["", "3-1", "0-", "a", "1,,2", "-1"] {
            assert!(Processors::parse_list(text).is_err(), "{text}");
        }
        for text in ["", "0x", "0x0", "0xg", "-1"] {
            assert!(Processors::parse_mask(text).is_err(), "{text}");
        }
        assert_eq!(Processors::parse_list("0-999999999999"), Err(ProcessorsError::Number(999_999_999_999)));
    }
}
