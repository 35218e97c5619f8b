//! Models in several files: `NAME-00001-of-0000N.gguf`, as `llama-gguf-split` writes them.

use super::header::Header;
use crate::FormatError;
use crate::checkpoint::FILES_MAX;

/// More parts than this are refused.
pub const PARTS_MAX: u32 = FILES_MAX as u32;

const COUNT: &str = "split.count";
const NUMBER: &str = "split.no";
const TENSORS: &str = "split.tensors.count";

/// The name of one part of a split model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartName {
    /// What stands before the numbers.
    pub stem: String,
    /// Number of this part, from 1.
    pub number: u32,
    /// Number of parts.
    pub count: u32,
}

impl PartName {
    /// Takes a base name apart; `None` if it is not that of a part.
    pub fn parse(name: &str) -> Option<PartName> {
        let (rest, count) = five_digits(name.strip_suffix(".gguf")?)?;
        let (rest, number) = five_digits(rest.strip_suffix("-of-")?)?;
        let stem = rest.strip_suffix('-')?;
        let sound = (1..=count).contains(&number) && !stem.is_empty();
        sound.then(|| PartName { stem: stem.to_owned(), number, count })
    }

    /// The base name of another part of the same model.
    pub fn part(&self, number: u32) -> String {
        format!("{}-{:05}-of-{:05}.gguf", self.stem, number, self.count)
    }
}

/// Takes a number of five digits off the end.
fn five_digits(text: &str) -> Option<(&str, u32)> {
    let (rest, digits) = text.split_at_checked(text.len().checked_sub(5)?)?;
    let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    Some((rest, digits.parse().ok().filter(|_| all_digits)?))
}

/// Checks that headers, in the order of their files, are the parts of one model.
pub fn check_parts(headers: &[Header]) -> Result<(), FormatError> {
    let Some(first) = headers.first() else { return Ok(()) };
    let parts = headers.len() as u64;
    if parts == 1 && first.metadata.u64(COUNT)?.is_none_or(|count| count <= 1) {
        return Ok(());
    }
    let mut tensors = 0u64;
    for (i, header) in headers.iter().enumerate() {
        let metadata = &header.metadata;
        let reason = "every part of a split model must have it";
        let count = metadata.u64(COUNT)?.ok_or_else(|| metadata.missing(COUNT, reason))?;
        if count != parts {
            let reason = format!(
                "but files given: {parts}; keep all parts in one folder under the names NAME-00001-of-{count:05}.gguf"
            );
            return Err(metadata.invalid(COUNT, reason));
        }
        let number = metadata.u64(NUMBER)?.ok_or_else(|| metadata.missing(NUMBER, reason))?;
        if number != i as u64 {
            return Err(metadata.invalid(NUMBER, format!("it must be {i} for part {} of {parts}", i + 1)));
        }
        tensors += header.tensors.len() as u64;
    }
    match first.metadata.u64(TENSORS)? {
        Some(expected) if expected != tensors => {
            let reason = format!("the parts together have {tensors} tensors");
            Err(first.metadata.invalid(TENSORS, reason))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::PartName;

    #[test]
    fn part_names_are_taken_apart_and_put_together() {
        let part = PartName::parse("some-model-00002-of-00003.gguf").unwrap();
        assert_eq!(part, PartName { stem: "some-model".to_owned(), number: 2, count: 3 });
        assert_eq!(part.part(1), "some-model-00001-of-00003.gguf");
    }

    #[test]
    fn names_that_only_look_like_parts_are_not() {
        for name in [
            "model.gguf",
            "model-00000-of-00003.gguf",
            "model-00004-of-00003.gguf",
            "model-0001-of-00003.gguf",
            "model-00001-of-+0003.gguf",
            "-00001-of-00003.gguf",
            "00001-of-00003.gguf",
            "model-00001-00003.gguf",
            "é0001-of-00003.gguf",
        ] {
            assert_eq!(PartName::parse(name), None, "{name}");
        }
    }
}
