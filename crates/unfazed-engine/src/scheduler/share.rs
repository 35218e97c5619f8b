//! How the rows of a step are shared among prompts.

/// Shares `budget` rows among prompts that need so many each, the longest waiting first. It gets half, so that it ends
/// in bounded time; the others share the rest in equal parts, so that a short prompt is not held up by a long one; what
/// is left over goes to whoever can use it, in order of arrival.
pub fn share(budget: usize, needs: &[usize]) -> Vec<usize> {
    let mut left = budget;
    let mut grants = vec![0; needs.len()];
    for (index, (grant, &need)) in grants.iter_mut().zip(needs).enumerate() {
        let part = if index == 0 { left.div_ceil(2) } else { left.div_ceil(needs.len() - index) };
        *grant = need.min(part);
        left -= *grant;
    }
    for (grant, &need) in grants.iter_mut().zip(needs) {
        let more = left.min(need - *grant);
        *grant += more;
        left -= more;
    }
    grants
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_short_prompt_behind_a_long_one_is_done_in_one_step() {
        assert_eq!(share(512, &[100_000, 30]), [482, 30]);
        assert_eq!(share(512, &[100_000, 100_000, 30]), [354, 128, 30]);
        assert_eq!(share(8, &[100, 100, 100]), [4, 2, 2]);
        assert_eq!(share(1, &[100, 100]), [1, 0]);
    }

    proptest! {
        #[test]
        fn all_of_the_budget_is_used_and_nobody_gets_more_than_it_needs(
            budget in 0usize..600,
            needs in prop::collection::vec(0usize..1000, 0..20),
        ) {
            let grants = share(budget, &needs);
            prop_assert_eq!(grants.iter().sum::<usize>(), budget.min(needs.iter().sum()));
            prop_assert!(grants.iter().zip(&needs).all(|(grant, need)| grant <= need));
            if let (Some(&grant), Some(&need)) = (grants.first(), needs.first()) {
                prop_assert!(grant >= need.min(budget.div_ceil(2)));
            }
        }
    }
}
