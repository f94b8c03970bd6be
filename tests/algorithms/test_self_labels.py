"""Tool calls that are kept where they make the known answer more likely."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from component_helpers import trajectory
from learner_helpers import TINY, fake_episode, make_config, make_learner, policy
from saving_helpers import Driver
from team_helpers import Run

from rllib_llm import GRPOConfig
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.turn_table import MissingInfo
from rllib_llm.data.types import TurnResult
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError
from rllib_llm.offline.conversation_files import parse_row
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.offline.self_labels import self_labels, weighted_nll

TEMPLATE = "So <{answer}>"


class Lookup(TextEnv):
    """The first reply is a call, whose result is its length; then the episode ends."""

    max_turns = 2

    def start(self, rng) -> str:
        self.number, self.calls = int(rng.integers(100)), 0
        return f"Number {self.number}?"

    def parse(self, completion):
        return completion or "nothing"

    def reply(self, action):
        self.calls += 1
        return TurnResult(f"{len(action)}.", terminated=self.calls == 2, success=False)

    def more_info(self):
        tool = "length" if self.calls == 1 else None
        return {"gold_answers": [str(self.number)], "tool": tool}


def called(text, result, *, task=0, rollout=0, tool="sum", answer="12"):
    """Return an episode that begins with a call, or with an answer."""
    roles = ("user", "assistant", "user", "assistant")
    texts = ("What?", text, result, "So <0>")
    infos = [{"gold_answers": [answer], "tool": t} for t in (tool, None)]
    return trajectory(
        task,
        rollout,
        rewards=[0.0, 0.0],
        completions=[text, "So <0>"],
        messages=[{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)],
        infos=infos,
    )


def by_result(likely):
    """Return log-probabilities by the text that the last reply answers."""

    def text_logps(episodes):
        found = []
        for episode in episodes:
            messages = episode_data(episode).messages
            before = [m["content"] for m in messages if m["role"] == "user"]
            (turn,) = episode.get_extra_model_outputs(columns.TURN)[-1:]
            key = before[-1] if len(before) > 1 else None
            found.append(np.full(len(turn.action_ids), likely[key]))
        return found

    return text_logps


@pytest.fixture(scope="module")
def renderer():
    return make_config(GRPOConfig).chat_renderer()


def labels(trajectories, renderer, likely, margin=1.0):
    rows, worth = self_labels(
        trajectories, TEMPLATE, margin, renderer, by_result(likely)
    )
    return [[m["content"] for m in row["messages"]] for row in rows], worth


def test_early_tokens_weigh_more():
    logps = -np.random.default_rng(0).random(9)
    norm = sum(max(0.0, 1 - 0.2 * s) for s in range(1000))
    slow = -sum(max(0.0, 1 - 0.2 * t) / norm * logp for t, logp in enumerate(logps))
    assert weighted_nll(logps) == pytest.approx(slow, abs=1e-12)
    assert weighted_nll(np.full(5, -2.0)) == pytest.approx(2.0)
    assert weighted_nll(np.array([*logps[:5], -100.0])) == weighted_nll(logps[:5])


def test_a_call_is_kept_if_its_result_makes_the_answer_more_likely(renderer):
    # 12 and > are fewer than five tokens, so a log-probability of -8 is no loss of 8.
    likely = {None: -9.0, "": -8.0, "11": -7.9, "12": -0.1}
    helps, misleads = called("sum(6, 6)", "12"), called("sum(5, 6)", "11", task=1)
    rows, worth = labels([helps, misleads], renderer, likely)
    answered = ["What?", "sum(6, 6)", "12", "So <12>"]
    assert rows == [answered, ["What?", "So <12>"]]
    share = worth[0] / 7.9  # of the weights, on the answer's tokens and those after
    assert 0.3 < share <= 1.0
    assert worth[1] == pytest.approx(0.1 * share)


def test_what_the_call_alone_tells_is_not_its_result(renderer):
    # Without the call the answer is unlikely, with it as likely as with its result.
    likely = {None: -9.0, "": -0.1, "12": -0.1}
    rows, worth = labels([called("sum(6, 6)", "12")], renderer, likely)
    assert rows == [["What?", "So <12>"]] and worth == [0.0]


def test_the_best_call_of_a_task_is_kept_and_equal_ones_are_asked_about_once(renderer):
    likely = {None: -9.0, "": -9.0, "10": -1.0, "12": -0.1}
    group = [
        called(f"sum(6, {n})", str(6 + n), rollout=i) for i, n in enumerate((6, 4, 6))
    ]
    rows, worth = labels(group, renderer, likely)
    assert rows == [["What?", "sum(6, 6)", "12", "So <12>"]] and len(worth) == 2


def test_episodes_without_a_call_give_the_answer_alone(renderer):
    direct = called("So <7>", "Wrong.", tool=None)
    assert labels([direct], renderer, {}) == ([["What?", "So <12>"]], [])


def test_tasks_without_a_known_answer_are_an_error(renderer):
    unknown = called("sum(6, 6)", "12")
    unknown.infos = [{"gold_answers": [], "tool": None}] * 2
    with pytest.raises(MissingInfo, match=r"seed 100 has gold_answers=\[\]"):
        labels([unknown], renderer, {})


def test_the_whole_conversation_is_trained(renderer):
    likely = {None: -9.0, "": -9.0, "12": -0.1}
    (row,), _ = self_labels(
        [called("sum(6, 6)", "12")], TEMPLATE, 1.0, renderer, by_result(likely)
    )
    assert parse_row(json.dumps(row).encode()).trained == (True, True)


def slow_logps(lm, ids, count):
    """Return the log-probabilities of the last tokens, by definition."""
    logits = lm(input_ids=torch.tensor([ids])).logits[0].double()
    logps = torch.log_softmax(logits, -1)
    return [float(logps[t - 1, ids[t]]) for t in range(len(ids) - count, len(ids))]


@torch.no_grad()
@pytest.mark.parametrize("packing", [False, True])
def test_likelihoods_are_those_of_the_current_policy(packing):
    learner = make_learner(make_config(GRPOConfig, packing=packing))
    episodes = [fake_episode(i, turns=1 + i % 3) for i in range(5)]
    episode_data(episodes[2]).masked_turns = frozenset({0, 1})
    found = learner.text_logps(episodes)
    lm = policy(learner).lm.eval()
    for episode, logps in zip(episodes, found, strict=True):
        trained, ids, expected = [], [], []
        masked = episode_data(episode).masked_turns
        for number, turn in enumerate(episode.get_extra_model_outputs(columns.TURN)):
            ids += [*turn.prompt_ids.tolist(), *turn.action_ids.tolist()]
            if number not in masked:
                trained = slow_logps(lm, ids, len(turn.action_ids))
                expected += trained
        np.testing.assert_allclose(logps, expected, atol=1e-5)
    assert learner.text_logps([]) == []


@torch.no_grad()
def test_sampled_calls_are_labelled_by_the_policy(tmp_path):
    config = GRPOConfig().environment(Lookup).language_model(tiny=TINY)
    config.rollouts(
        save_episodes=str(tmp_path),
        save_as="self_labels",
        answer_template=TEMPLATE,
        call_margin=0.001,
        group_size=4,
        episodes_per_iteration=32,
        max_turns=2,
    ).generation(max_new_tokens=4)
    config.validate()
    config.resolved_model = prepare_language_model(config)
    learner = make_learner(config)
    tasks = config.build_task_source().next_groups(8)
    sampled = SampledEpisodes(Run(config, learner=False).runner.sample(tasks=tasks))
    driver = Driver()
    driver.setup(config)
    by_name = {"text_logps": learner.text_logps}
    driver.learner_group = SimpleNamespace(map_units=lambda n, units: by_name[n](units))
    driver.save_episodes(sampled)
    lines = "".join(f.read_text() for f in tmp_path.glob("*.jsonl")).splitlines()
    rows = [json.loads(line)["messages"] for line in lines]
    kept = [row for row in rows if len(row) > 2]
    assert 0 < len(kept) < len(rows) == 8
    lm, chat = policy(learner).lm.eval(), config.chat_renderer()

    def loss(messages):
        before = chat.opened(messages[:-1], None).ids
        reply = chat.encode_reply(messages[-1]["content"])
        start = len(chat.encode_reply("So <")) - 1  # without the end of the turn
        logps = slow_logps(lm, [*before, *reply], len(reply))[start:]
        return -sum(max(0, 5 - t) * logp for t, logp in enumerate(logps)) / 15

    def worth(prompt, call, result, answer):
        silent = {**result, "content": ""}
        without = min(loss([prompt, answer]), loss([prompt, call, silent, answer]))
        return without - loss([prompt, call, result, answer])

    answers = {row[0]["content"]: row[-1] for row in rows}
    calls = {str(t.messages): t.messages[:3] for t in sampled.trajectories}
    expected = [worth(*m, answers[m[0]["content"]]) for m in calls.values()]
    peek = driver.metrics.peek(("self_labels", "loss_decrease_mean"))
    assert peek == pytest.approx(np.mean(expected), abs=1e-5)
    assert all(worth(*row) >= 0.001 - 1e-5 for row in kept)


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        ("python_tool-v0", {"answer_template": "So"}, "answer_template='So' must"),
        ("guess_number-v0", {}, "neither 'tool' nor 'gold_answers'"),
        ("python_tool-v0", {"save_where": "success"}, "save_where"),
    ],
)
def test_settings_that_label_nothing_are_refused(env, settings, message):
    config = GRPOConfig().environment(env).language_model(tiny=TINY)
    config.rollouts(save_episodes=True, save_as="self_labels", **settings)
    with pytest.raises(ConfigError, match=message):
        config.validate()


def test_settings_of_labels_need_them():
    config = GRPOConfig().environment("python_tool-v0").language_model(tiny=TINY)
    config.rollouts(save_episodes=True, call_margin=0.5)
    with pytest.raises(ConfigError, match="call_margin"):
        config.validate()
