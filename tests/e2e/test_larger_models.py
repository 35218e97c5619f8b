"""The same with models that are not in the repository."""

import pytest

from conftest import assert_readable

MODELS = [
    # name in UNFAZED_TEST_MODELS, question, what a right answer holds
    ("smollm2-135m-instruct-q4_1.gguf", "Who wrote Romeo and Juliet?", "Shakespeare"),
    ("stories-moe-29m", "Tell me a story about a cat.", "cat"),
]


@pytest.mark.parametrize("name, question, expected", MODELS, ids=[model[0] for model in MODELS])
def test_a_model_answers_sensibly_streamed_and_not(start, test_model, name, question, expected):
    server = start("-m", test_model(name))
    settings = dict(
        model="any", messages=[{"role": "user", "content": question}], temperature=0, max_tokens=100
    )
    whole = server.client.chat.completions.create(**settings).choices[0].message.content
    assert expected.lower() in whole.lower()
    stream = server.client.chat.completions.create(stream=True, **settings)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == whole
    settings["messages"] = [{"role": "user", "content": "Write a story about a dog and a boat."}]
    assert_readable(server.client.chat.completions.create(**settings).choices[0].message.content)
