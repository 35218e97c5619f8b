"""Chat completions as the OpenAI client sees them."""

import concurrent.futures
import os
import signal
import time

from conftest import PATIENCE, assert_readable

STORY = [{"role": "user", "content": "Tell me a story about a cat."}]


def ask(server, messages=STORY, **settings):
    settings.setdefault("temperature", 0)
    settings.setdefault("max_tokens", 48)
    return server.client.chat.completions.create(model="any", messages=messages, **settings)


def text_of_stream(stream):
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_an_answer_is_readable_english(demo):
    answer = ask(demo, max_tokens=120)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert_readable(answer.choices[0].message.content)


def test_a_sampled_answer_is_readable_english(demo):
    answer = ask(demo, max_tokens=120, temperature=0.8, top_p=0.95, seed=1)
    assert_readable(answer.choices[0].message.content)


def test_a_stream_carries_the_same_text_in_pieces(demo):
    whole = ask(demo)
    chunks = list(ask(demo, stream=True))
    assert len(chunks) > 10
    assert text_of_stream(chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)


def test_usage_and_timings_count_what_happened(demo):
    answer = ask(demo, max_tokens=7)
    assert answer.choices[0].finish_reason == "length"
    usage = answer.usage
    assert usage.completion_tokens == 7
    assert usage.total_tokens == usage.prompt_tokens + 7
    timings = answer.model_extra["timings"]
    assert timings["predicted_n"] == 7
    assert timings["cache_n"] + timings["prompt_n"] == usage.prompt_tokens
    for name in ("prompt_ms", "prompt_per_second", "predicted_ms", "predicted_per_second"):
        assert timings[name] > 0, name


def test_a_stream_gives_usage_in_its_last_chunk_when_asked(demo):
    chunks = list(ask(demo, max_tokens=5, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 5
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_choices_differ_and_each_is_reproducible(demo):
    first = ask(demo, n=3, temperature=1, seed=7)
    again = ask(demo, n=3, temperature=1, seed=7)
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts == [choice.message.content for choice in again.choices]


def test_choices_of_a_stream_are_those_without(demo):
    whole = ask(demo, n=2, temperature=1, seed=9, max_tokens=20)
    texts = ["", ""]
    for chunk in ask(demo, n=2, temperature=1, seed=9, max_tokens=20, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]


def test_a_seed_decides_the_answer(demo):
    texts = [ask(demo, temperature=1, seed=seed).choices[0].message.content for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_a_stop_string_ends_the_answer_and_is_not_part_of_it(demo):
    whole = ask(demo).choices[0].message.content
    stop = whole[20:26]
    for stream in (False, True):
        answer = ask(demo, stop=[stop, "never said"], stream=stream)
        if stream:
            chunks = list(answer)
            text, reason = text_of_stream(chunks), chunks[-1].choices[0].finish_reason
        else:
            text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
        assert text == whole[: whole.index(stop)]
        assert reason == "stop"


def test_an_answer_ends_by_itself(demo):
    answer = ask(demo, [{"role": "user", "content": "Write a short poem about rain."}], max_tokens=1500)
    assert answer.choices[0].finish_reason == "stop"
    assert "<|im_end|>" not in answer.choices[0].message.content


def test_logprobs_are_those_of_the_chosen_and_the_likeliest_tokens(demo):
    answer = ask(demo, logprobs=True, top_logprobs=4, max_tokens=12)
    content = answer.choices[0].logprobs.content
    assert len(content) == 12
    assert "".join(token.token for token in content) == answer.choices[0].message.content
    for token in content:
        assert len(token.top_logprobs) == 4
        likeliest = [top.logprob for top in token.top_logprobs]
        assert likeliest == sorted(likeliest, reverse=True)
        assert token.logprob == likeliest[0] <= 0, "greedy decoding takes the likeliest token"


def test_a_logit_bias_bans_and_forces_tokens(demo):
    first = demo.client.completions.create(model="any", prompt="Once upon a", max_tokens=1, temperature=0, logprobs=1)
    token = first.choices[0].logprobs.tokens[0]
    forced = demo.client.completions.create(
        model="any", prompt="Once upon a", max_tokens=3, temperature=0, logprobs=1, logit_bias={"1234": 100}
    )
    forced_tokens = forced.choices[0].logprobs.tokens
    assert len(set(forced_tokens)) == 1 and forced_tokens[0] != token
    banned = demo.client.completions.create(
        model="any", prompt="Once upon a", max_tokens=3, temperature=0, logprobs=1, logit_bias={"1234": -100}
    )
    assert banned.choices[0].logprobs.tokens[0] == token


def test_a_system_prompt_and_earlier_turns_are_heard(demo):
    user = {"role": "user", "content": "Go on."}
    turns = [{"role": "user", "content": "Tell me of a dog."}, {"role": "assistant", "content": "Rex the dog ran."}]
    plain = ask(demo, [user]).choices[0].message.content
    assert ask(demo, [{"role": "system", "content": "You write poems."}, user]).choices[0].message.content != plain
    assert ask(demo, turns + [user]).choices[0].message.content != plain


def test_special_tokens_in_a_users_text_are_plain_text(demo):
    def tokens(text):
        return ask(demo, [{"role": "user", "content": text}], max_tokens=1).usage.prompt_tokens

    assert tokens("a<|im_end|>b") > tokens("ab") + 2, "one special token would be one more"


def test_eight_clients_at_once_get_what_each_would_get_alone(demo):
    questions = [f"Tell me a story about {thing}." for thing in "a cat,a dog,the sea,rain,a king,bread,a tree,snow".split(",")]

    def answer(question):
        return ask(demo, [{"role": "user", "content": question}], temperature=1, seed=3).choices[0].message.content

    alone = [answer(question) for question in questions]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(answer, questions))
    assert together == alone


def wait_until(server, metric, value):
    start = time.monotonic()
    while server.metric(metric) != value:
        assert time.monotonic() - start < PATIENCE, f"{metric} is {server.metric(metric)}, not {value}"
        time.sleep(0.02)


def test_a_client_that_leaves_frees_its_place(demo):
    stream = ask(demo, max_tokens=1900, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    wait_until(demo, "unfazed_requests_running", 0)
    # Were it still computed, its tokens would be counted.
    generated = demo.metric("unfazed_generated_tokens_total")
    assert ask(demo, max_tokens=1).usage.completion_tokens == 1
    assert demo.metric("unfazed_generated_tokens_total") - generated == 1


def test_a_client_that_leaves_the_queue_is_never_computed(start):
    server = start("--parallel", 1)
    engine = server.engine()
    os.kill(engine, signal.SIGSTOP)
    first = ask(server, max_tokens=20, stream=True, extra_body={"ignore_eos": True})
    second = ask(server, max_tokens=20, stream=True, extra_body={"ignore_eos": True})
    wait_until(server, "unfazed_requests_queued", 2)
    second.close()
    wait_until(server, "unfazed_requests_queued", 1)
    os.kill(engine, signal.SIGCONT)
    assert text_of_stream(first)
    wait_until(server, "unfazed_requests_running", 0)
    assert server.metric("unfazed_generated_tokens_total") == 20
