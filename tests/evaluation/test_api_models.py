"""evaluate --api: conversations, outcomes and errors, against a real HTTP server."""

import json

import pytest
from chat_server import ChatServer, bisect

pytest.importorskip("openai")

from rllib_llm.envs import TextEnv, TurnResult
from rllib_llm.errors import ConfigError
from rllib_llm.evaluation import api_models
from rllib_llm.evaluation.api_models import ApiError, ApiSettings, evaluate_api


@pytest.fixture
def serve(monkeypatch):
    servers = []
    monkeypatch.setattr(api_models, "_RETRIES", 0)

    def start(reply):
        servers.append(ChatServer(reply))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def test_a_good_player_solves_the_tasks_on_which_runs_are_evaluated(serve):
    server = serve(bisect)
    evaluation, outcomes = evaluate_api(
        ApiSettings(server.url, "bisector"), "guess_number-v0", {"upper": 15}, 12
    )
    assert evaluation.success.mean == 1.0
    assert evaluation.greedy and evaluation.tasks == 12
    from rllib_llm import GRPOConfig

    config = GRPOConfig().environment("guess_number-v0", env_config={"upper": 15})
    tasks = config.build_task_source(in_evaluation=True).fixed(12)
    assert [o.seed for o in outcomes] == [t.seed for t in tasks]
    assert sum(o.tokens for o in outcomes) == 3 * len(server.requests)
    assert len(server.requests) == sum(o.turns for o in outcomes)
    request = server.requests[0]
    assert request["path"] == "/v1/chat/completions"
    assert (request["temperature"], request["max_tokens"]) == (0.0, 256)
    assert request["model"] == "bisector"


def test_settings_reach_the_request_and_samples_are_counted(serve):
    server = serve(lambda body: (200, "guess 3"))
    settings = ApiSettings(server.url, "m", temperature=0.7, max_new_tokens=9)
    evaluation, outcomes = evaluate_api(
        settings, "guess_number-v0", {"upper": 15, "max_turns": 2}, 4, samples=3
    )
    assert (evaluation.tasks, evaluation.samples, len(outcomes)) == (4, 3, 12)
    assert not evaluation.greedy
    assert all(r["temperature"] == 0.7 for r in server.requests)
    assert all(r["max_tokens"] == 9 for r in server.requests)
    assert evaluation.stop_reasons["max_turns"] >= 6


def test_the_run_s_limit_of_turns_ends_an_episode(serve):
    server = serve(lambda body: (200, "guess 3"))
    evaluation, outcomes = evaluate_api(
        ApiSettings(server.url, "m"), "guess_number-v0", {"upper": 15}, 6, max_turns=1
    )
    assert {o.turns for o in outcomes} == {1}
    assert evaluation.stop_reasons["max_turns"] >= 4


def test_agents_have_conversations_of_their_own(serve):
    server = serve(lambda body: (200, "7"))
    evaluation, outcomes = evaluate_api(
        ApiSettings(server.url, "m", concurrency=1), "secret_sum-v0", {}, 3
    )
    assert evaluation.episodes == 3
    assert all(set(o.agent_returns) == {"alice_0", "bob_0"} for o in outcomes)
    for request in server.requests:
        roles = [m["role"] for m in request["messages"] if m["role"] != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]


class Broken(TextEnv):
    def start(self, rng):
        return "Say something."

    def reply(self, action):
        if self.np_random.random() < 0.5:
            raise RuntimeError("broken")
        return TurnResult("Over.", 1.0, terminated=True, success=True)


def test_failures_are_never_a_reward_of_zero(serve):
    server = serve(lambda body: (200, "hello"))
    evaluation, outcomes = evaluate_api(
        ApiSettings(server.url, "m"), f"{__name__}:Broken", {}, 20
    )
    assert evaluation.failures["env_error"] + evaluation.episodes == 20
    assert 0 < evaluation.episodes < 20
    assert evaluation.success.mean == 1.0
    assert all(o.episode_return is None for o in outcomes if o.failure)
    slow = serve(lambda body: (503, "busy"))
    evaluation, _ = evaluate_api(ApiSettings(slow.url, "m"), "guess_number-v0", {}, 3)
    assert evaluation.failures == {"timeout": 3}


@pytest.mark.parametrize("status", [401, 404, 400])
def test_an_api_without_access_ends_the_evaluation(serve, status):
    server = serve(lambda body: (status, "no"))
    with pytest.raises(ApiError, match=r"model='m'.*OPENAI_API_KEY"):
        evaluate_api(ApiSettings(server.url, "m"), "guess_number-v0", {}, 50)
    assert len(server.requests) < 50


def test_pictures_are_refused_before_a_request(serve):
    server = serve(lambda body: (200, "red"))
    with pytest.raises(ConfigError, match="shows pictures"):
        evaluate_api(ApiSettings(server.url, "m"), "colour_grid-v0", {}, 2)
    assert not server.requests


def test_an_address_that_does_not_answer(serve):
    server = serve(bisect)
    server.close()
    with pytest.raises(ApiError, match="Check the address"):
        evaluate_api(ApiSettings(server.url, "m"), "guess_number-v0", {}, 2)
    with pytest.raises(ConfigError, match="must be an address"):
        evaluate_api(ApiSettings("localhost", "m"), "guess_number-v0", {}, 2)


def test_the_command(serve, capsys, tmp_path):
    from rllib_llm.cli.main import main

    server = serve(bisect)
    out = tmp_path / "a.json"
    arguments = ["evaluate", "--api", server.url, "--model", "m", "--episodes", "5"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--env", "guess_number-v0:upper=15", "--out", str(out)])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "guess_number-v0 (upper=15): 5 held-out tasks, greedy" in printed
    assert "success   1.000" in printed
    written = json.loads(out.read_text())
    assert len(written["evaluations"][0]["outcomes"]) == 5
    for wrong, message in (
        (["evaluate"], "RUN is missing"),
        (["evaluate", "run", "--model", "m"], "--model has no effect without --api"),
        (arguments, "--api needs --model NAME, and --env NAME"),
        ([*arguments, "--env", "nothing-v0"], "Unknown environment"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(wrong)
        assert ended.value.code == 1
        assert message in capsys.readouterr().err
