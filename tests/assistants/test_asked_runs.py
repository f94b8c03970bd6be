"""Runs with assistants: answers become rewards, and every source is asked."""

from __future__ import annotations

import json
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from assistant_helpers import API, OWN, SCRIPT, YES_NO, asked_config
from team_helpers import PAIR, PairTogether, tiny_model

from rllib_llm.algorithms.config.check_assistants import check_source
from rllib_llm.algorithms.driver.assistants import answering_model
from rllib_llm.assistants.answers import Answer
from rllib_llm.assistants.settings import read_assistant
from rllib_llm.data.episode_data import episode_data
from rllib_llm.engines.base import SamplingParams, generate
from rllib_llm.env_runner.answering import AnsweringModel, AnswerQuestions
from rllib_llm.errors import ConfigError, EnvRunnerError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
ASKED = [{"name": "environment", "weight": 0.0}, {"name": "asked", "of": "judge"}]


def by_length(question):
    """Answer by the length of the agent's last text; some answers are unreadable."""
    return ("hm", "yes", "no")[sum(map(ord, question.replies[-1])) % 3]


def length_class(trajectory):
    return sum(map(ord, trajectory.completions[-1])) % 3


def metrics_of(algo):
    return algo.metrics.reduce()


def asked(algo, name="judge"):
    return metrics_of(algo)["assistants"][name]


# From answers to rewards ------------------------------------------------------------


def advantages(rewards, assistants):
    config = asked_config(assistants, rollouts={"rewards": rewards})
    algo = config.training(drop_zero_variance_groups=False).build_algo()
    episodes = algo.collect()
    algo.stop()
    return [np.array(episode_data(e).advantage) for e in episodes]


def test_an_asked_reward_that_equals_the_true_one_gives_the_same_advantages():
    true = advantages("environment", {})
    asked_ones = advantages(ASKED, {"judge": SCRIPT})
    assert any(a.any() for a in true)
    assert all(np.array_equal(a, b) for a, b in zip(true, asked_ones, strict=True))


def test_answers_go_through_weights_and_transforms_as_other_rewards():
    rewards = [{"name": "asked", "of": "judge", "weight": 2.0}]
    transforms = [{"name": "clip", "low": 0.0, "high": 2.5}]
    algo = asked_config(
        {"judge": SCRIPT},
        rollouts={"rewards": rewards, "reward_transforms": transforms},
    ).build_algo()
    trajectories = algo.sample_groups(2).trajectories
    assert {t.rewards[-1] for t in trajectories} == {0.0, 2.5}
    assert all((t.rewards[-1] > 0) == t.success for t in trajectories)
    algo.stop()


def test_unreadable_answers_have_their_value_or_drop_the_episode():
    given = {"script": by_length, "parse": YES_NO}
    algo = asked_config({"judge": {**given, "unreadable": 0.25}}).build_algo()
    trajectories = algo.sample_groups(2).trajectories
    values = [(0.25, 1.0, 0.0)[length_class(t)] for t in trajectories]
    assert [t.rewards[-1] for t in trajectories] == values
    unreadable = values.count(0.25)
    assert 0 < unreadable < 8
    results = metrics_of(algo)
    assert int(results["assistants"]["judge"]["num_unreadable"]) == unreadable
    assert int(results["num_episodes_unreadable"]) == 0
    algo.stop()

    algo = asked_config({"judge": given}).build_algo()
    kept = algo.sample_groups(2)
    assert len(kept) == len(kept.trajectories) == 8 - unreadable
    assert all(length_class(t) > 0 for t in kept.trajectories)
    assert int(metrics_of(algo)["num_episodes_unreadable"]) == unreadable
    algo.stop()


def test_a_run_of_unreadable_answers_makes_no_update_and_says_so(caplog):
    given = {**OWN, "unreadable": "drop"}  # an untrained model says neither
    algo = asked_config({"judge": given}).build_algo()
    result = algo.train()
    assert result["num_episodes_unreadable"] == 8
    assert result["num_updates_skipped"] == 1
    assert "none of 8 answers is readable" in caplog.text
    algo.stop()


def test_the_environment_is_still_reported_as_it_is():
    given = {**SCRIPT, "script": {"name": "outcome", "accuracy": 0.0}}
    algo = asked_config({"judge": given}).build_algo()
    result = algo.train()
    success = result["env_runners"]["success_rate"]
    judge = result["assistants"]["judge"]
    assert result["reward_parts"]["asked"] == 1 - success
    assert result["reward_parts"]["environment"] == 0
    assert (judge["value_mean_failed"], judge["value_mean_solved"]) == (1.0, 0.0)
    assert judge["value_mean"] == 1 - success
    assert judge["sampled_tokens"] == 0
    algo.stop()


# Models that answer -----------------------------------------------------------------


class Asked:
    """Keeps what an algorithm asks its local EnvRunner."""

    def __init__(self, algo):
        self.calls = []
        answer = algo._answers_once

        def kept(model, questions, left):
            answers = answer(model, questions, left)
            self.calls.append((model, questions, answers))
            return answers

        algo._answers_once = kept


def test_the_policy_is_asked_with_its_current_weights():
    algo = asked_config({"judge": OWN}).build_algo()
    log = Asked(algo)
    algo.sample_groups(2)
    ((model, questions, answers),) = log.calls
    assert model.model is None
    engine = algo.env_runner.engine
    renderer = algo.config.chat_renderer()
    prompts = [renderer.first(list(q.messages)) for q in questions]
    params = [
        SamplingParams(
            max_new_tokens=16,
            seed=q.seed,
            temperature=0.0,
            stop_token_ids=renderer.stop_token_ids,
        )
        for q in questions
    ]
    for i, generation in enumerate(generate(engine, prompts, params)):
        ids = generation.token_ids.tolist()
        expected = Answer(renderer.decode(ids), len(ids), len(prompts[i]))
        assert answers[i] == expected
    algo.stop()


def disturb(algo):
    with torch.no_grad():
        for parameter in algo.env_runner.modules["default_policy"].parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    algo.env_runner.set_weights_version(7)


def answers_of(algo, given, text="Say something."):
    by = AnsweringModel("default_policy", given, 1.0, 16)
    messages = [({"role": "user", "content": text},)] * 3
    return [a.text for a in AnswerQuestions(by, messages, [1, 2, 3])(algo.env_runner)]


def test_initial_weights_and_other_models_do_not_follow_the_policy():
    own, other = tiny_model(), tiny_model(1)
    sections = {"unreadable": 0.5, **{k: OWN[k] for k in ("template", "parse")}}
    algo = asked_config(
        {
            "now": OWN,
            "first": {**OWN, "weights": "initial"},
            "other": {**sections, "model": other},
        }
    ).build_algo()
    models = {name: m.model for name, m in algo._answering.items()}
    assert models == {"now": None, "first": own, "other": other}
    before = {name: answers_of(algo, model) for name, model in models.items()}
    assert before["now"] == before["first"] != before["other"]
    disturb(algo)
    after = {name: answers_of(algo, model) for name, model in models.items()}
    assert after["now"] != before["now"]
    assert after["first"] == before["first"]
    assert after["other"] == before["other"]
    algo.stop()


def test_tokens_of_answers_are_counted_apart():
    algo = asked_config({"judge": {**OWN, "samples": 2, "temperature": 1.0}})
    algo = algo.build_algo()
    algo.sample_groups(2)
    results = metrics_of(algo)
    judge, runners = results["assistants"]["judge"], results["env_runners"]
    assert int(judge["num_answers"]) == 16
    assert 16 < int(judge["sampled_tokens"]) <= 16 * 16
    assert int(judge["prompt_tokens"]) > 16 * 10
    decoded = int(runners["engine"]["decoded_tokens"])
    assert decoded == int(runners["num_completion_tokens"])
    # Nor are they among the counters of the next iteration.
    algo.sample_groups(2)
    runners = metrics_of(algo)["env_runners"]
    decoded = int(runners["engine"]["decoded_tokens"])
    assert decoded == int(runners["num_completion_tokens"])
    algo.stop()


def test_questions_longer_than_the_context_are_unreadable():
    algo = asked_config(
        {"judge": {**OWN, "template": "x" * 300 + "{reply}"}},
        generation={"max_context_tokens": 100},
    ).build_algo()
    assert all(t.rewards[-1] == 0.25 for t in algo.sample_groups(2).trajectories)
    assert int(asked(algo)["num_too_long"]) == 8
    algo.stop()


def test_policies_that_share_an_engine_answer_with_their_own_adapters():
    pytest.importorskip("peft")
    lora = {"rank": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj"]}
    config = asked_config(
        {"judge": {**OWN, "policy": "b"}},
        env=PairTogether,
        language_model={"model": tiny_model(), "lora": lora},
        multi_agent={"policies": ["a", "b"], "policy_mapping_fn": PAIR},
    )
    algo = config.build_algo()
    runner = algo.env_runner
    assert runner.engines["a"] is runner.engines["b"]
    with torch.no_grad():
        for name, parameter in runner.modules["b"].named_parameters():
            if "lora" in name:
                parameter += torch.randn_like(parameter)
    runner.set_weights_version(7)
    messages = [({"role": "user", "content": "Say something."},)] * 3
    texts = {}
    for policy in ("a", "b"):
        by = AnsweringModel(policy, None, 1.0, 16)
        texts[policy] = AnswerQuestions(by, messages, [1, 2, 3])(runner)
    assert texts["a"] != texts["b"]
    assert len(algo.sample_groups(2).trajectories) == 16  # both agents are asked about
    assert int(asked(algo)["num_answers"]) == 16
    algo.stop()


@pytest.mark.slow
def test_remote_runners_answer_as_the_local_one():
    texts = []
    for runners in (0, 2):
        config = asked_config(
            {"judge": {**OWN, "temperature": 1.0}}, env="frozen_lake-v0"
        )
        config.env_runners(num_env_runners=runners)
        algo = config.build_algo()
        log = Asked(algo)
        algo.train()
        texts.append([[a.text for _, a in sorted(c[2].items())] for c in log.calls])
        algo.stop()
    assert texts[0] == texts[1]


class Losing:
    """Answers of EnvRunners of which some are lost."""

    def __init__(self, algo, lost):
        self.asked, answer = [], algo._answers_once

        def once(model, questions, left):
            self.asked.append(list(left))
            answers = answer(model, questions, left)
            return {} if len(self.asked) <= lost else answers

        algo._answers_once = once


def test_questions_of_lost_runners_are_asked_again():
    algo = asked_config({"judge": OWN}).build_algo()
    log = Losing(algo, lost=2)
    algo.sample_groups(2)
    assert log.asked == [list(range(8))] * 3
    with pytest.raises(EnvRunnerError, match="8 of 8 questions"):
        Losing(algo, lost=9)
        algo.sample_groups(2)
    algo.stop()


def test_a_runner_with_other_weights_does_not_answer():
    algo = asked_config({"judge": OWN}).build_algo()
    by, runner = algo._answering["judge"], algo.env_runner
    version = runner._weights_seq_no + 1
    assert AnswerQuestions(by, [], [], version)(runner) is None
    algo.stop()


# APIs -------------------------------------------------------------------------------


class Server(BaseHTTPRequestHandler):
    """An API that answers yes to questions about texts with an even number of "a"."""

    requests: list = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append(body)
        text = "yes" if body["messages"][-1]["content"].count("a") % 2 else "no"
        message = {"role": "assistant", "content": text}
        answer = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        }
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def url():
    pytest.importorskip("openai")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_an_api_is_asked(url):
    given = {**API, "api": {"url": url, "model": "m", "concurrency": 2}}
    algo = asked_config(
        {"judge": {**given, "system": "Judge.", "max_new_tokens": 5}}
    ).build_algo()
    Server.requests.clear()
    for trajectory in algo.sample_groups(2).trajectories:
        text = f"Environment: {trajectory.observations[0]}\nAgent: "
        is_odd = (text + trajectory.completions[0]).count("a") % 2
        assert trajectory.rewards[-1] == is_odd
    assert len(Server.requests) == 8
    request = Server.requests[0]
    assert request["messages"][0] == {"role": "system", "content": "Judge."}
    assert (request["max_tokens"], request["temperature"]) == (5, 0.0)
    counts = asked(algo)
    assert (int(counts["sampled_tokens"]), int(counts["num_unreadable"])) == (24, 0)
    assert int(counts["prompt_tokens"]) == 7 * 8
    algo.stop()


def test_a_request_that_takes_too_long_is_unreadable(url, monkeypatch):
    from rllib_llm.evaluation.api_models import ApiModel

    def slow(self, messages):
        raise TimeoutError("slow")

    given = {**API, "api": {"url": url, "model": "m"}, "unreadable": 0.5}
    algo = asked_config({"judge": given}).build_algo()
    monkeypatch.setattr(ApiModel, "reply", slow)
    assert all(t.rewards[-1] == 0.5 for t in algo.sample_groups(2).trajectories)
    algo.stop()


# Refused before training ------------------------------------------------------------


@pytest.mark.parametrize(
    ("assistants", "sections", "words"),
    [
        ({}, {"rollouts": {"rewards": ASKED}}, "'judge', which is not in"),
        ({"judge": OWN}, {"rollouts": {"rewards": []}}, "judge is never asked"),
        ({"judge": {**OWN, "policy": "default"}}, {}, "Did you mean 'default_policy'"),
        ({"judge": {**OWN, "template": "{turn:y}"}}, {}, "template"),
        (
            {"judge": {**SCRIPT, "parse": {"words": {"a": 1.0, "b": 0.0}}}},
            {},
            "parse reads none",
        ),
        ({"judge": {**SCRIPT, "privileged": False}}, {}, "privileged to True"),
        ({"judge": {**SCRIPT, "script": lambda question: 1}}, {}, "answer as str"),
        (
            {"judge": SCRIPT},
            {"training": {"advantage_baseline": "greedy"}},
            "greedy",
        ),
        (
            {"judge": OWN},
            {"env_runners": {"sample_ahead": 1, "num_env_runners": 1}},
            "keeps EnvRunners busy, but rollouts.assistants",
        ),
    ],
)
def test_runs_that_cannot_be_asked_are_refused(assistants, sections, words):
    with pytest.raises(ConfigError, match=words):
        asked_config(assistants, **sections).validate()


def test_a_frozen_model_needs_an_engine_of_its_own():
    config = asked_config({"judge": OWN})
    config.generation_engine = "vllm"
    for given, is_refused in ((OWN, False), ({**OWN, "weights": "initial"}, True)):
        judge = read_assistant("judge", given)
        with pytest.raises(ConfigError, match="alone") if is_refused else nullcontext():
            check_source(config, judge)


def test_a_policy_that_chooses_among_actions_writes_no_answers():
    config = asked_config({"judge": OWN})
    config.action_head = "score"
    with pytest.raises(ConfigError, match="writes no text"):
        check_source(config, read_assistant("judge", OWN))


def test_a_stage_begins_with_no_folder_of_initial_weights():
    config = asked_config({"judge": OWN})
    config.initial_checkpoint = "somewhere"
    judge = read_assistant("judge", {**OWN, "weights": "initial"})
    with pytest.raises(ConfigError, match="Export that stage"):
        answering_model(config, judge)


def test_missing_models_are_refused(tmp_path):
    given = {k: OWN[k] for k in ("template", "parse")}
    for model in (str(tmp_path / "none"), str(tmp_path)):
        config = asked_config({"judge": {**given, "model": model}})
        with pytest.raises(Exception, match=str(tmp_path)):
            config.validate()
