"""The OpenAI-compatible API of trained policies, in this process."""

import asyncio
import json
import time
import types

import numpy as np
import pytest
from serving_helpers import require_packages, serving
from team_helpers import Run, team_config

from rllib_llm.engines.base import SamplingParams, generate
from rllib_llm.serving import app

HELLO = [{"role": "user", "content": "Hello."}]
CHAT = "/v1/chat/completions"
POLICY = "default_policy"


def text_of(answer):
    return answer["choices"][0]["message"]["content"]


def events_of(body):
    parts = body.strip().split("\n\n")
    assert parts[-1] == "data: [DONE]"
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-1]]


# Policies -----------------------------------------------------------------------------


def test_a_reply_is_what_the_engine_samples_from_the_prompt_of_training(single):
    status, answer = single.post(
        model=POLICY,
        messages=HELLO,
        temperature=0,
        return_token_ids=True,
        logprobs=True,
    )
    assert status == 200, answer
    config = single.run.config
    renderer = config.chat_renderer()
    # The environment's system message, as in training.
    prompt = renderer.first([{"role": "system", "content": "Be brief."}, *HELLO])
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    sampling = {**config.sampling_params(explore=False), "temperature": 0.0}
    params = SamplingParams(max_new_tokens=4, seed=0, **sampling)
    engine = single.run.runner.engine
    alone = single.server.loop.call(lambda: generate(engine, [prompt], [params]))
    (expected,) = alone.result()
    (choice,) = answer["choices"]
    assert choice["token_ids"] == expected.token_ids.tolist()
    logps = [each["logprob"] for each in choice["logprobs"]["content"]]
    np.testing.assert_allclose(logps, expected.logps, atol=1e-5)
    assert choice["finish_reason"] == "length"


def test_a_system_message_replaces_that_of_training(single):
    own = [{"role": "system", "content": "Be very brief indeed."}, *HELLO]
    _, short = single.post(model=POLICY, messages=HELLO)
    _, long = single.post(model=POLICY, messages=own)
    extra = len("Be very brief indeed.") - len("Be brief.")  # a token is a byte
    got = long["usage"]["prompt_tokens"] - short["usage"]["prompt_tokens"]
    assert got == extra


def test_seeds(single):
    def ask(**body):
        _, answer = single.post(model=POLICY, messages=HELLO, max_tokens=20, **body)
        return [choice["message"]["content"] for choice in answer["choices"]]

    first = ask(seed=5, n=3)
    assert len(set(first)) == 3 and ask(seed=5, n=3) == first
    assert ask(seed=5) == first[:1]
    assert ask(seed=6) != first[:1]
    assert ask() != ask()


def test_settings_of_a_request(single):
    def tokens(**body):
        _, answer = single.post(model=POLICY, messages=HELLO, **body)
        return answer["usage"]["completion_tokens"]

    assert tokens() == 4 and tokens(max_tokens=2) == 2
    # Unlike in training, a request may ask for more, up to the context.
    assert 4 < tokens(max_tokens=40, seed=1) <= 40
    alike = [
        text_of(single.post(model=POLICY, messages=HELLO, top_p=1e-6)[1])
        for _ in range(2)
    ]
    assert alike[0] == alike[1]


def test_a_stop_string_ends_the_reply_and_is_not_part_of_it(single):
    body = {"model": POLICY, "messages": HELLO, "max_tokens": 30}
    for seed in range(20):  # until a random reply is long enough
        body["seed"] = seed
        whole = text_of(single.post(**body)[1])
        stop = whole[5:7]
        if len(stop) == 2 and "\ufffd" not in whole:
            break
    status, answer = single.post(**body, stop=stop)
    assert status == 200 and text_of(answer) == whole[: whole.index(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"
    streamed = single.session(
        lambda c: c.post(CHAT, json={**body, "stop": stop, "stream": True})
    )
    assert joined(events_of(streamed.text)) == whole[: whole.index(stop)]


def joined(events, index=0):
    return "".join(
        choice["delta"].get("content", "")
        for event in events
        for choice in event["choices"]
        if choice["index"] == index
    )


def test_a_stream_is_the_same_reply_in_parts(single, monkeypatch):
    monkeypatch.setattr("rllib_llm.serving.engine_loop.PROGRESS_S", 0.0)
    body = {"model": POLICY, "messages": HELLO, "max_tokens": 60, "seed": 8, "n": 2}
    whole = [c["message"]["content"] for c in single.post(**body)[1]["choices"]]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    answer = single.session(lambda c: c.post(CHAT, json={**body, **options}))
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer.text)
    assert [joined(events, 0), joined(events, 1)] == whole
    parts = [e for e in events if e["choices"] and e["choices"][0]["delta"]]
    assert len(parts) > 6  # it does not arrive at once
    reasons = [c["finish_reason"] for e in events for c in e["choices"]]
    assert sum(reason is not None for reason in reasons) == 2
    assert events[-1]["choices"] == [] and events[-1]["usage"]["prompt_tokens"] > 0


def test_parts_of_characters_stops_and_thinking_are_held_back(single):
    from rllib_llm.openai_api.requests import ParsedCall

    model = single.server.policies[POLICY]
    renderer = model.policy.renderer
    call = ParsedCall(POLICY, stop=("END",))

    def shown(text, cut=0):
        ids = renderer.tokenizer.encode(text, add_special_tokens=False)
        return model.text_so_far(call, ids[: len(ids) - cut])

    assert shown("naïve") == "naïve" and shown("na\u00ef", cut=1) == "na"
    assert shown("theE") == shown("theEN") == shown("theENDx") == "the"
    assert shown("a<think>b") == shown("a<thi") == "a"
    assert shown("a<think>b</think>c") == "ac"


def test_completions_and_tools(single):
    status, answer = single.post(
        "/v1/completions", model=POLICY, prompt=[1, 2, 3], logprobs=0, max_tokens=2
    )
    assert status == 200 and answer["usage"]["prompt_tokens"] == 3
    assert len(answer["choices"][0]["logprobs"]["token_logprobs"]) == 2
    add = {"name": "add", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": add}]
    _, plain = single.post(model=POLICY, messages=HELLO)
    status, answer = single.post(model=POLICY, messages=HELLO, tools=tools)
    assert status == 200, answer
    assert answer["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + 10


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "nobody"}, 404, "is no policy of this run"),
        ({"model": "team"}, 404, "has one agent"),
        ({"model": [["x"]]}, 400, "model=[['x']] must be a text"),
        ({"temperature": -1}, 400, "temperature=-1 must be a number in"),
        ({"top_p": 0}, 400, "top_p"),
        ({"logit_bias": {"1": 2}}, 400, "does not sample in this way"),
        ({"unknown": 1}, 400, "docs/serving.md"),
        ({"messages": []}, 400, "at least one message"),
        ({"max_tokens": 0}, 400, "max_tokens=0"),
        (
            {"messages": [{"role": "user", "content": "word " * 5000}]},
            400,
            "context",
        ),
        ({"prompt": "x", "messages": None}, 400, "messages"),
    ],
)
def test_refused_requests(single, body, status, words):
    got, answer = single.post(**{"model": POLICY, "messages": HELLO, **body})
    assert got == status and words in answer["error"]["message"], answer
    assert set(answer["error"]) == {"message", "type", "param", "code"}


def test_paths_methods_and_bodies(single):
    assert single.get("/nothing").status_code == 404
    assert single.get(CHAT).status_code == 405
    for content, status in [(b"{", 400), (b"[1]", 400), (b"x" * (9 * 2**20), 413)]:
        answer = single.session(lambda c, b=content: c.post(CHAT, content=b))
        assert answer.status_code == status and "error" in answer.json()


def test_models_and_health(single):
    names = [model["id"] for model in single.get("/v1/models").json()["data"]]
    assert names == [POLICY]
    assert single.get(f"/v1/models/{POLICY}").json()["id"] == POLICY
    assert single.get("/v1/models/x").status_code == 404
    assert single.get("/health").json()["status"] == "ok"


def number(metrics, start):
    lines = [line for line in metrics.splitlines() if line.startswith(start)]
    return sum(float(line.split()[-1]) for line in lines)


def test_metrics_count_requests_errors_tokens_and_time(single):
    def read():
        text = single.get("/metrics").text
        names = ['requests_total{model="%s"', "tokens_total", "request_seconds_count"]
        good, tokens, timed = (
            number(text, f"rllib_llm_{n % POLICY if '%' in n else n}") for n in names
        )
        bad = number(text, 'rllib_llm_requests_total{model="",path="/v1/chat')
        assert number(text, "rllib_llm_running_requests") == 0
        return np.array([good, bad, tokens, timed])

    before = read()
    _, answer = single.post(model=POLICY, messages=HELLO)
    single.post(model="nobody", messages=HELLO)
    single.session(
        lambda c: c.post(
            CHAT, json={"model": POLICY, "messages": HELLO, "stream": True}
        )
    )
    tokens = 2 * answer["usage"]["total_tokens"]
    assert (read() - before).tolist() == [2, 1, tokens, 3]


def test_requests_at_the_same_time_share_batches(single):
    engine = single.run.runner.engine

    async def many(client):
        body = {"model": POLICY, "messages": HELLO, "max_tokens": 20, "seed": 4}
        return await asyncio.gather(*(client.post(CHAT, json=body) for _ in range(40)))

    single.server.loop.call(engine.reset_stats).result()
    answers = single.session(many)
    assert {a.status_code for a in answers} == {200}
    assert len({text_of(a.json()) for a in answers}) == 1
    stats = single.server.loop.call(engine.stats).result()
    decoded = sum(a.json()["usage"]["completion_tokens"] for a in answers)
    assert stats["decoded_tokens"] == decoded
    assert stats["forwards"] < decoded / 4  # 8 slots


def test_a_request_whose_client_left_is_given_up(single):
    engine, loop = single.run.runner.engine, single.server.loop

    async def leave(client):
        body = {"model": POLICY, "messages": HELLO, "max_tokens": 1000, "seed": 1}
        for stream in (False, True):
            request = client.post(CHAT, json={**body, "n": 8, "stream": stream})
            task = asyncio.ensure_future(request)
            while not loop.num_pending:
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    single.session(leave)
    until = time.monotonic() + 20
    while loop.num_pending and time.monotonic() < until:
        time.sleep(0.01)
    assert loop.call(lambda: engine.num_unfinished).result() == 0
    assert not loop.call(lambda: engine._sessions).result()


def test_keys():
    with serving(key="secret") as one:
        assert one.post(model=POLICY, messages=HELLO)[0] == 401
        right = {"Authorization": "Bearer secret"}
        assert one.post(model=POLICY, messages=HELLO, headers=right)[0] == 200
        assert one.get("/v1/models").status_code == 401
        assert one.get("/v1/models", **right).status_code == 200
        assert one.get("/health").status_code == 200


def test_a_failed_engine_is_reported_and_nothing_hangs():
    with serving() as one:
        engine = one.run.runner.engine

        def fail():
            raise RuntimeError("out of memory")

        engine.step = fail
        for stream in (False, True):
            answer = one.session(
                lambda c, s=stream: c.post(
                    CHAT, json={"model": POLICY, "messages": HELLO, "stream": s}
                )
            )
            assert "out of memory" in answer.text
            assert answer.status_code == 503
        assert one.get("/health").status_code == 503


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_a_body_that_comes_too_slowly_is_refused(single, path, monkeypatch):
    monkeypatch.setattr(app, "BODY_TIMEOUT_S", 0.1)

    async def slow():
        yield b'{"model": '
        await asyncio.sleep(30)
        yield b'"x"}'

    started = time.monotonic()
    answer = single.session(lambda client: client.post(path, content=slow()))
    assert time.monotonic() - started < 10
    assert answer.status_code == 408
    error = answer.json()["error"]
    assert error["code"] == "timeout" and "did not arrive" in error["message"]
    assert single.post(model=POLICY, messages=HELLO)[0] == 200


# Team ---------------------------------------------------------------------------------


def test_the_team_answers_after_its_inner_conversation(team):
    models = [model["id"] for model in team.get("/v1/models").json()["data"]]
    assert models == ["a", "b", "team"]
    status, answer = team.post(model="team", messages=HELLO, seed=2)
    assert status == 200, answer
    # By hand: the adviser reads the message, the solver the message and the advice.
    from rllib_llm.data.types import Task
    from rllib_llm.inference.policy import LLMPolicy
    from rllib_llm.seeding import stable_seed

    seed = stable_seed(2, 0)
    talk = LLMPolicy(team.run.runner).conversation(Task(0, 0, seed))
    (advice,) = (
        team.server.loop.call(lambda: talk.replies({"adviser_0": "Hello."}))
        .result()
        .values()
    )
    read = f"Hello.\nadviser_0 says: {advice}"
    (expected,) = (
        team.server.loop.call(lambda: talk.replies({"solver_0": read}))
        .result()
        .values()
    )
    assert text_of(answer) == expected
    prompt_tokens, sampled = talk.num_tokens
    assert answer["usage"]["prompt_tokens"] == prompt_tokens
    assert answer["usage"]["completion_tokens"] == sampled


def test_a_team_that_votes_answers_with_the_text_of_most_agents(voters):
    why = [{"role": "user", "content": "Why?"}]  # neither replies with blanks
    replies = {}
    for name in ("a", "b"):
        status, answer = voters.post(model=name, messages=why, temperature=0)
        assert status == 200, answer
        replies[name] = text_of(answer)
    assert replies["a"] != replies["b"]
    # The first agent and the last one have policy a, the three others policy b.
    status, answer = voters.post(model="team", messages=why, temperature=0)
    assert status == 200, answer
    assert text_of(answer) == replies["b"]
    assert answer["usage"]["completion_tokens"] == 5 * 4


def test_many_teams_at_once(team):
    async def many(client):
        bodies = [
            {"model": "team", "messages": HELLO, "seed": i % 5, "n": 1 + i % 2}
            for i in range(20)
        ]
        return await asyncio.gather(*(client.post(CHAT, json=b) for b in bodies))

    answers = team.session(many)
    assert {a.status_code for a in answers} == {200}
    by_seed = [text_of(a.json()) for a in answers]
    assert by_seed[:5] == by_seed[5:10] == by_seed[15:]
    streamed = team.session(
        lambda c: c.post(
            CHAT, json={"model": "team", "messages": HELLO, "seed": 0, "stream": True}
        )
    )
    assert joined(events_of(streamed.text)) == by_seed[0]


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 0.5},
        {"stop": "x"},
        {"logprobs": True},
        {"max_tokens": 3},
        {"messages": [{"role": "user", "content": " "}]},
        {"messages": [{"role": "system", "content": "x"}, *HELLO]},
        {"messages": [*HELLO, {"role": "assistant", "content": "x"}, *HELLO]},
    ],
)
def test_what_a_team_refuses(team, body):
    status, answer = team.post(**{"model": "team", "messages": HELLO, **body})
    assert status == 400 and "team" in answer["error"]["message"], answer


@pytest.mark.parametrize(
    ("env", "mapping", "words"),
    [
        ("secret_sum-v0", None, "observe its own tasks"),
        ("team-v0", {"adviser": "a", "solver": "team"}, "has the name 'team'"),
    ],
)
def test_runs_without_a_team(env, mapping, words):
    from rllib_llm import LLMPPOConfig
    from rllib_llm.envs import make_env
    from rllib_llm.serving.team import team_problem

    if mapping is None:
        agents = make_env(env).possible_agents
        mapping = dict.fromkeys(agents, "a")
    policies = tuple(dict.fromkeys(mapping.values()))
    config = team_config(env, LLMPPOConfig, policies=policies, mapping=mapping)
    run = Run(config, learner=False)
    assert words in team_problem(run.runner)
    run.runner.stop()


def test_policies_that_only_choose_cannot_be_served():
    require_packages()
    from rllib_llm.errors import ConfigError
    from rllib_llm.serving.app import PolicyServer

    config = types.SimpleNamespace(module_ids=("scorer",))
    runner = types.SimpleNamespace(engines={}, config=config)
    with pytest.raises(ConfigError, match="scorer .*none writes text"):
        PolicyServer(runner)
