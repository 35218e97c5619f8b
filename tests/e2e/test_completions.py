"""Completions: prompts of all kinds, echo and log probabilities as evaluation harnesses use them."""

import pytest

from conftest import assert_readable


def complete(server, prompt, **settings):
    settings.setdefault("temperature", 0)
    settings.setdefault("max_tokens", 16)
    return server.client.completions.create(model="any", prompt=prompt, **settings)


def test_a_prompt_is_continued_in_english(demo):
    answer = complete(demo, "Once upon a time, there was a little", max_tokens=80)
    assert answer.object == "text_completion"
    assert_readable(answer.choices[0].text)


def test_a_stream_carries_the_same_text(demo):
    whole = complete(demo, "Once upon a time").choices[0].text
    stream = complete(demo, "Once upon a time", stream=True)
    assert "".join(choice.text for chunk in stream for choice in chunk.choices) == whole


def test_several_prompts_give_a_choice_each_in_order(demo):
    prompts = ["Once upon a time", "The sea is", "A cat"]
    alone = [complete(demo, prompt).choices[0].text for prompt in prompts]
    together = complete(demo, prompts)
    assert [choice.text for choice in together.choices] == alone
    assert [choice.index for choice in together.choices] == [0, 1, 2]


def test_token_ids_are_prompts_too(demo):
    one = complete(demo, [1, 500, 600])
    assert one.usage.prompt_tokens == 3
    several = complete(demo, [[1, 500, 600], [1, 700]])
    assert several.choices[0].text == one.choices[0].text
    assert several.usage.prompt_tokens == 5


def test_echo_puts_the_prompt_in_front(demo):
    plain = complete(demo, "Once upon a time").choices[0].text
    echoed = complete(demo, "Once upon a time", echo=True).choices[0].text
    assert echoed == "Once upon a time" + plain


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_echo_with_logprobs_scores_the_prompt(demo, max_tokens):
    prompt = "Once upon a time, there was a little girl."
    choice = complete(demo, prompt, echo=True, logprobs=2, max_tokens=max_tokens).choices[0]
    logprobs = choice.logprobs
    tokens = len(logprobs.tokens)
    assert len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.text_offset) == tokens
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert logprobs.text_offset[0] == 0 and logprobs.text_offset == sorted(logprobs.text_offset)
    if max_tokens == 0:
        assert choice.text == prompt
    assert sum(logprobs.token_logprobs[1:]) / (tokens - 1) > -4, "plain English is likely to a model of it"


def test_scoring_a_text_gives_the_very_numbers_of_generating_it(demo):
    prompt = "Once upon a time, there was a little girl"
    written = complete(demo, prompt, logprobs=1, max_tokens=20).choices[0]
    scored = complete(demo, prompt + written.text, max_tokens=0, echo=True, logprobs=1).choices[0]
    assert scored.logprobs.tokens[-20:] == written.logprobs.tokens
    assert scored.logprobs.token_logprobs[-20:] == written.logprobs.token_logprobs


def test_special_tokens_of_a_prompt_are_parsed(demo):
    chat = demo.client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "Hello"}], max_tokens=24, temperature=0
    )
    rendered = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    answer = complete(demo, rendered, max_tokens=24)
    assert answer.usage.prompt_tokens == chat.usage.prompt_tokens
    assert answer.choices[0].text == chat.choices[0].message.content


def test_an_answer_that_repeats_itself_ends_with_a_reason_that_the_client_takes(demo):
    extra = {"logit_bias": {"300": 100}, "max_tokens": 40, "extra_body": {"ignore_eos": True, "repeat_stop_tokens": 9}}
    answer = complete(demo, "Once", **extra)
    assert answer.choices[0].finish_reason == "repetition"
    assert answer.usage.completion_tokens == 9
    stream = complete(demo, "Once", stream=True, **extra)
    assert [choice.finish_reason for chunk in stream for choice in chunk.choices][-1] == "repetition"
    chat = demo.client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "Once"}], temperature=0, **extra
    )
    assert chat.choices[0].finish_reason == "repetition"
