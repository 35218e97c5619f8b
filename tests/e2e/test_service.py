"""What stands around answers: models, health, metrics, errors, keys."""

import httpx
import openai
import pytest

MESSAGES = [{"role": "user", "content": "Hello"}]


def ask(server, **settings):
    settings.setdefault("messages", MESSAGES)
    settings.setdefault("max_tokens", 4)
    return server.client.chat.completions.create(model="any", **settings)


def test_the_model_is_listed(demo):
    models = list(demo.client.models.list())
    assert [model.id for model in models] == [demo.ready["model"]]
    assert demo.client.models.retrieve(models[0].id).object == "model"


def test_health_and_metrics_answer(demo):
    health = httpx.get(demo.url + "/health")
    assert (health.status_code, health.json()["status"]) == (200, "ok")
    metrics = httpx.get(demo.url + "/metrics").text
    assert "unfazed_requests_total{" in metrics
    assert "unfazed_kv_pages" in metrics


@pytest.mark.parametrize(
    "settings, field",
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
        ({"stop": ["a"] * 1000}, "stop"),
    ],
)
def test_a_field_that_makes_no_sense_is_a_400_that_names_it(demo, settings, field):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(demo, **settings)
    assert field in refused.value.body["message"]
    assert refused.value.type == "invalid_request_error"


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(demo):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(demo, messages=[{"role": "user", "content": "cat " * 5000}])
    assert refused.value.code == "context_length_exceeded"
    assert str(demo.ready["settings"]["context"]) in refused.value.body["message"]


def test_an_unknown_path_and_a_wrong_method_are_told_apart(demo):
    assert httpx.post(demo.url + "/v1/nothing", json={}).status_code == 404
    assert httpx.get(demo.url + "/v1/chat/completions").status_code == 405


def test_broken_json_is_a_400(demo):
    answer = httpx.post(demo.url + "/v1/chat/completions", content="{", headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_page_of_another_origin_and_a_foreign_host_name_are_turned_away(demo):
    url = demo.url + "/v1/models"
    assert httpx.get(url, headers={"origin": "https://evil.example"}).status_code == 403
    assert httpx.get(url, headers={"host": "evil.example"}).status_code == 403
    assert httpx.get(url, headers={"origin": demo.url}).status_code == 200


def test_cors_lets_in_the_origins_that_were_named(start):
    server = start("--cors", "https://app.example")
    url = server.url + "/v1/models"
    allowed = httpx.get(url, headers={"origin": "https://app.example"})
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    assert httpx.get(url, headers={"origin": "https://other.example"}).status_code == 403


def test_a_key_is_needed_where_one_was_set(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    server = start("--api-key-file", keys)
    for key in ("one", "two"):
        assert list(server.client.with_options(api_key=key).models.list())
    with pytest.raises(openai.AuthenticationError) as refused:
        ask(server)
    assert refused.value.code == "invalid_api_key"
    assert httpx.get(server.url + "/health").status_code == 200
    assert httpx.get(server.url + "/metrics").status_code == 401


def test_the_key_may_come_from_the_environment(start):
    server = start(key="secret")
    assert ask(server).choices
    with pytest.raises(openai.AuthenticationError):
        server.client.with_options(api_key="secre").models.list()
