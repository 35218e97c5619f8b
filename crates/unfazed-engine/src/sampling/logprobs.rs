//! Log probabilities of the model's own distribution: log-softmax of the logits as they come from the model.

use unfazed_kernels::Isa;
use unfazed_kernels::vector::log_sum_exp;
use unfazed_wire::TokenLogprobs;

use super::select::largest;

/// Log probabilities of `token` and of the `top` most likely tokens (best first, ties by id), from finite logits.
pub fn token_logprobs(isa: Isa, logits: &[f32], token: u32, top: u32) -> TokenLogprobs {
    let normaliser = log_sum_exp(isa, logits);
    // Rounding may leave the normaliser just below the largest logit; a probability above 1 would be absurd.
    let logprob =
        |id: u32| logits.get(id as usize).map_or(f32::NEG_INFINITY, |logit| (logit - normaliser).min(0.0));
    let mut order = Vec::new();
    largest(logits, top as usize, &mut order);
    TokenLogprobs {
        token,
        logprob: logprob(token),
        top: order.into_iter().map(|id| (id, logprob(id))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up_to_one_and_come_in_order() {
        let logits = [1.0, 3.0, 2.0, 3.0];
        let all = token_logprobs(Isa::best(), &logits, 2, 4);
        let ids: Vec<u32> = all.top.iter().map(|&(id, _)| id).collect();
        assert_eq!(ids, [1, 3, 2, 0]);
        let total: f32 = all.top.iter().map(|&(_, logprob)| logprob.exp()).sum();
        assert!((total - 1.0).abs() < 1e-6);
        assert_eq!(all.logprob, all.top[2].1);
    }

    #[test]
    fn a_certain_token_has_log_probability_zero_and_none_is_above() {
        let certain = token_logprobs(Isa::best(), &[0.0, 200.0], 1, 2);
        assert_eq!((certain.logprob, certain.top.len()), (0.0, 2));
        assert_eq!(certain.top[1], (0, -200.0));
    }
}
