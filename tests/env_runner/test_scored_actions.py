"""Action scorer: choices among admissible actions, records and errors."""

from __future__ import annotations

import numpy as np
import pytest
from runner_helpers import TINY, make_runner

from rllib_llm import LLMPPOConfig
from rllib_llm.algorithms.driver.prepared_models import with_models
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.types import StopReason, Task, TurnResult
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError, EnvContractError

# Random weights give nearly all mass to one action; the temperature spreads it.
SCORE = {"head": "score", "temperature": 20.0}
TASKS = [Task(i, 0, i) for i in range(8)]


class Listed(TextEnv):
    """Lasts two turns; its class attribute holds the admissible actions."""

    max_turns = 2
    listed: tuple = (["go left", "go", "stay here"],) * 2

    def start(self, rng) -> str:
        return f"Choose {rng.integers(100)}."

    def reply(self, action):
        return TurnResult(f"You chosen_texts {action}.", reward=float(action == "go"))

    def admissible_actions(self):
        return self.listed[self.turn]


def sample(runner, explore=True):
    return runner.sample(tasks=TASKS, explore=explore)


def turns_of(episodes):
    return [
        turn
        for episode in episodes
        for part in agent_episodes(episode)
        for turn in part.get_extra_model_outputs("turn")
    ]


def chosen_texts(episodes):
    return [list(p.get_actions()) for e in episodes for p in agent_episodes(e)]


def logps(episodes):
    return np.array([t.action_logps[0] for t in turns_of(episodes)])


@pytest.fixture(scope="module")
def runner():
    return make_runner(Listed, generation=SCORE)


def test_turns_are_token_in_token_out(runner):
    for episode in sample(runner):
        data, ids = episode_data(episode), []
        renderer = runner.config.chat_renderer()
        for i, turn in enumerate(episode.get_extra_model_outputs("turn")):
            text = episode.get_actions(i)
            assert text in Listed.listed[0]
            assert turn.action_ids.tolist() == renderer.encode_reply(text)
            assert turn.action_logps[0] < 0 and not turn.action_logps[1:].any()
            others = [renderer.decode(x.tolist()) for x in turn.choice.others]
            assert sorted([text, *others]) == sorted(Listed.listed[0])
            assert turn.choice.weights.tolist() == [1.0, 1.0, 1.0]
            ids += [*turn.prompt_ids.tolist(), *turn.action_ids.tolist()]
        assert data.ids == ids
        replies = [m["content"] for m in data.messages if m["role"] == "assistant"]
        assert replies == list(episode.get_actions())
        assert sum(episode.get_rewards()) == replies.count("go")


@pytest.mark.parametrize(
    ("norm", "count"),
    [("token", lambda n, text: n), ("word", lambda n, t: len(t.split()))],
)
def test_norms_divide_by_tokens_or_words(norm, count):
    runner = make_runner(Listed, generation={**SCORE, "score_norm": norm})
    renderer = runner.config.chat_renderer()
    for turn in turns_of(sample(runner)):
        for ids, weight in zip(
            (turn.action_ids, *turn.choice.others), turn.choice.weights, strict=True
        ):
            text = renderer.decode(ids.tolist())
            assert weight == pytest.approx(1 / count(len(ids), text))


def test_choices_do_not_depend_on_concurrent_episodes():
    alone, together, again = (
        sample(make_runner(Listed, generation=SCORE, slots=n)) for n in (1, 8, 8)
    )
    assert chosen_texts(alone) == chosen_texts(together) == chosen_texts(again)
    np.testing.assert_allclose(logps(alone), logps(together), atol=1e-5)
    assert len({tuple(actions) for actions in chosen_texts(alone)}) > 1


def test_choice_frequencies_match_the_policy():
    """Frequencies over many seeds, within four standard errors."""
    runner = make_runner(Listed, generation=SCORE, slots=64)
    tasks = [Task(0, rollout, 0) for rollout in range(400)]
    turns = [
        episode.get_extra_model_outputs("turn")[0]
        for episode in runner.sample(tasks=tasks)
    ]
    chances = {t.action_ids.tobytes(): np.exp(t.action_logps[0]) for t in turns}
    assert len(chances) == 3 and sum(chances.values()) == pytest.approx(1, abs=1e-5)
    for action, chance in chances.items():
        share = np.mean([t.action_ids.tobytes() == action for t in turns])
        assert abs(share - chance) < 4 * np.sqrt(chance * (1 - chance) / 400)


def test_greedy_takes_the_most_likely_action(runner):
    first, second = sample(runner, explore=False), sample(runner, explore=False)
    assert chosen_texts(first) == chosen_texts(second)
    assert (np.exp(logps(first)) > 1 / 3 - 1e-6).all()


def test_temperature_flattens_the_categorical():
    cold, hot = (
        logps(
            sample(make_runner(Listed, generation={**SCORE, "temperature": t}), False)
        )
        for t in (1.0, 1e4)
    )
    np.testing.assert_allclose(np.exp(hot), 1 / 3, atol=0.01)
    assert (cold > hot).all()


def test_an_action_longer_than_the_context_overflows():
    first = make_runner(Listed, generation=SCORE)
    lengths = [t.prompt_ids.size + t.action_ids.size for t in turns_of(sample(first))]
    room = {**SCORE, "max_context_tokens": max(lengths) + 4}
    for episode in sample(make_runner(Listed, generation=room)):
        assert len(episode) == 1 and episode.is_truncated
        assert episode_data(episode).stop_reason is StopReason.CONTEXT_OVERFLOW


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (
            None,
            r"at turn 1 returned info\['admissible_actions'\] = None.*head='generate'",
        ),
        ([], r"= \[\], but generation\(head='score'\)"),
        (["go", 3], r"lists 3 in info.*non-blank string"),
        (["go", " "], r"lists ' ' in info"),
        (["go", "stay", "go"], r"lists 'go' twice"),
        (["go<|im_end|>"], r"'go<\|im_end\|>'.*decodes to 'go'"),
    ],
)
def test_admissible_actions_are_checked_at_every_turn(listed, message):
    class Bad(Listed):
        listed = (["go", "stay"], None)

    Bad.listed = (["go", "stay"], listed)
    with pytest.raises(EnvContractError, match=message):
        sample(make_runner(Bad, generation=SCORE))


def test_top_k_is_refused_with_action_scorers(runner):
    config = runner.config.copy(copy_frozen=False).generation(top_k=5)
    with pytest.raises(ConfigError, match="top_k=5 restrict the vocabulary"):
        LLMEnvRunner(config=config)


def two_policies(env, **generation):
    config = (
        LLMPPOConfig()
        .environment(env)
        .language_model(tiny=TINY)
        .env_runners(num_envs_per_env_runner=4)
        .multi_agent(
            policies={"a": {}, "b": {"generation": generation}},
            policy_mapping_fn={"player_0": "a", "player_1": "b"},
        )
        .generation(head="score")
    )
    config.validate()
    return LLMEnvRunner(config=with_models(config))


@pytest.mark.parametrize("other", [{}, {"head": "generate", "max_new_tokens": 3}])
def test_agents_of_a_game_choose_among_legal_actions(other):
    pytest.importorskip("pyspiel")
    runner = two_policies("open_spiel/kuhn_poker-v0", **other)
    assert set(runner.action_scorers) == ({"a", "b"} if not other else {"a"})
    episodes = sample(runner)
    for episode in episodes:
        for part in agent_episodes(episode):
            for i, turn in enumerate(part.get_extra_model_outputs("turn")):
                chosen = part.module_id in runner.action_scorers
                assert (turn.choice is not None) == chosen
                if chosen:
                    legal = part.get_infos(i)["admissible_actions"]
                    assert part.get_actions(i) in legal and len(legal) == 2
