//! Lists of numbers as llama-bench takes them: `512,1024`, `1-8`, `1-9+2`, `1-64*2`.

use std::str::FromStr;

/// Most numbers of one list: more are a slip of the pen.
const MOST: usize = 1000;

/// A list of numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Numbers(Vec<usize>);

impl Numbers {
    /// All numbers of a flag that was given several times, or what it is by default.
    pub(super) fn all(lists: &[Numbers], default: &[usize]) -> Vec<usize> {
        match lists {
            [] => default.to_vec(),
            lists => lists.iter().flat_map(|list| list.0.iter().copied()).collect(),
        }
    }
}

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Numbers, String> {
        let mut numbers = Vec::new();
        for part in text.split(',') {
            let range = range(part).ok_or_else(|| {
                format!("{part:?} is no number, nor a range such as 1-8, 1-9+2 or 1-64*2 (lists: 1,2,4)")
            })?;
            numbers.extend(range);
            if numbers.len() > MOST {
                return Err(format!("that are more than {MOST} numbers"));
            }
        }
        Ok(Numbers(numbers))
    }
}

/// The numbers of `first[-last[(+|*)step]]`, at most one more than [`MOST`].
fn range(text: &str) -> Option<Vec<usize>> {
    let Some((first, rest)) = text.split_once('-') else { return Some(vec![text.parse().ok()?]) };
    let (last, step): (_, Box<dyn Fn(usize) -> Option<usize>>) =
        if let Some((last, step)) = rest.split_once('+') {
            let step: usize = step.parse().ok().filter(|step| *step > 0)?;
            (last, Box::new(move |n| n.checked_add(step)))
        } else if let Some((last, times)) = rest.split_once('*') {
            let times: usize = times.parse().ok().filter(|times| *times > 1)?;
            (last, Box::new(move |n| n.checked_mul(times)))
        } else {
            (rest, Box::new(|n| n.checked_add(1)))
        };
    let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
    // A range that begins at nothing would never end by multiplication.
    let endless = first == 0 && step(0) == Some(0);
    (first <= last && !endless).then(|| {
        std::iter::successors(Some(first), |n| step(*n)).take_while(|n| *n <= last).take(MOST + 1).collect()
    })
}

/// Prompt and generation of one test: `512,128`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair(pub(super) usize, pub(super) usize);

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Pair, String> {
        let numbers = text.split_once(',').and_then(|(p, g)| Some((p.parse().ok()?, g.parse().ok()?)));
        match numbers {
            Some((prompt, generate)) if prompt > 0 && generate > 0 => Ok(Pair(prompt, generate)),
            _ => Err("a prompt's and a generation's tokens are expected, such as 512,128".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(text: &str) -> Result<Vec<usize>, String> {
        text.parse().map(|Numbers(numbers)| numbers)
    }

    #[test]
    fn lists_and_ranges_are_those_of_llama_bench() {
        assert_eq!(numbers("512").unwrap(), [512]);
        assert_eq!(numbers("0,128,256").unwrap(), [0, 128, 256]);
        assert_eq!(numbers("1-4").unwrap(), [1, 2, 3, 4]);
        assert_eq!(numbers("1-8+3,16").unwrap(), [1, 4, 7, 16]);
        assert_eq!(numbers("1-33*2").unwrap(), [1, 2, 4, 8, 16, 32]);
        assert_eq!(Numbers::all(&[Numbers(vec![1]), Numbers(vec![2])], &[7]), [1, 2]);
        assert_eq!(Numbers::all(&[], &[7]), [7]);
    }

    #[test]
    fn what_is_no_list_is_refused_and_no_range_is_endless() {
        for text in ["", "a", "1,", "4-1", "1-8+0", "1-8*1", "0-8*2", "1-2-3", "-1", "1-999999999"] {
            assert!(numbers(text).is_err(), "{text}");
        }
        let last = format!("1-{}*2", usize::MAX);
        assert_eq!(numbers(&last).unwrap().len(), usize::BITS as usize);
        assert_eq!("512,128".parse(), Ok(Pair(512, 128)));
        for text in ["512", "0,1", "1,0", "1,2,3", "a,b"] {
            assert!(text.parse::<Pair>().is_err(), "{text}");
        }
    }
}
