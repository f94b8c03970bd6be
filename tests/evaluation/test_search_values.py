"""Backup and values of places in the tree search."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from search_toys import REWARDS, Lock, ScriptedRunner, Walk, scripted_reply
from team_helpers import Run, batches, single_config, wake_critic
from test_tree_search import Algo

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.algorithms.scorer.trains_scorer import TrainsScorer
from rllib_llm.algorithms.scorer.whole_episode import WholeEpisode
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import Task
from rllib_llm.errors import ConfigError
from rllib_llm.evaluation.outcomes import held_out_tasks
from rllib_llm.evaluation.place_values import place_values, pooled
from rllib_llm.evaluation.search_summary import evaluate_search
from rllib_llm.evaluation.tree_search import (
    MctsSettings,
    Snapshots,
    TaskSearch,
    search_tasks,
)
from rllib_llm.forks import search_tree

GAMMA, SEED = 0.9, 3
CRITIC = MctsSettings(simulations=10, width=3, evaluate="critic")


def worth(walked):
    """Return the value of a place in the walk."""
    return 0.1 * len(walked) - 0.3 * walked.count("b")


def worths(episodes):
    """Return the values of the places before the last turns of walks."""
    return [worth("".join(e.get_actions()[:-1]).lower()) for e in episodes]


def tree_of(count, values=None, **settings):
    """Sample a tree without playing a turn; return root, episodes and search."""
    # More than are sampled: a turn that is played frees the others.
    chosen = MctsSettings(simulations=1000, gamma=GAMMA, **settings)
    task = Task(group_id=0, rollout=0, seed=SEED)
    runner, snapshots = ScriptedRunner(), Snapshots(Walk())
    search = TaskSearch(task, chosen)
    for _ in range(count):
        episode = runner.play(search.next_task(snapshots))
        runner.episodes.append(episode)
        is_known = values and len(episode) > episode_data(episode).fork_turn + 1
        search.add(episode, values([episode])[0] if is_known else None)
    return search.here, runner.episodes, search


def turns_below(place):
    for turn in place.turns.values():
        yield turn
        if turn.after is not None:
            yield from turns_below(turn.after)


def walked(turn):
    sample = turn.data
    return "".join(sample.episode.get_actions()[: sample.turn + 1]).lower()


def test_max_is_the_largest_return_through_a_turn():
    root, _, _ = tree_of(40, width=30, backup="max")
    number = different = 0
    for turn in turns_below(root):
        best = turn.reward
        if turn.after is not None:
            best += GAMMA * max(t.value for t in turn.after.turns.values())
            different += len(turn.after.turns) > 1
        assert turn.value == pytest.approx(best, abs=1e-12)
        number += 1
    assert number > 10 and different > 3
    mean, _, _ = tree_of(40, width=30)
    best, highest = (
        max(t.value for t in place.turns.values()) for place in (mean, root)
    )
    assert best < highest


def test_max_plays_the_turns_of_the_best_return():
    """A turn with one good end among bad ones is worth that end."""
    task = Task(group_id=0, rollout=0, seed=SEED)
    for seed in range(8):
        found = {}
        for backup in ("mean", "max"):
            settings = MctsSettings(simulations=60, width=6, backup=backup)
            (search,) = search_tasks(
                ScriptedRunner(), [dataclasses.replace(task, seed=seed)], settings
            )
            found[backup] = search.outcome(0).episode_return
        assert found["max"] >= found["mean"]


def test_a_known_value_stands_for_the_rest_of_the_episode(monkeypatch):
    simulated, backup = [], search_tree.backup

    def recorded(path, gamma, by, after=0.0):
        simulated.append((walked(path[-1]), path[-1].after is None, after))
        backup(path, gamma, by, after)

    monkeypatch.setattr(search_tree, "backup", recorded)
    root, episodes, search = tree_of(25, worths, width=6, evaluate="critic")
    tokens = 0
    for episode in episodes:
        first = episode_data(episode).fork_turn
        # One turn, and perhaps the one that tells whether it was the last one.
        actions = tuple(episode.get_actions())
        is_over = actions[first].lower() == "c" or first + 1 == 4
        assert len(episode) == first + 1 + (not is_over)
        turn = episode.get_extra_model_outputs(columns.TURN)[first]
        tokens += len(turn.action_ids)
    assert search.tokens == tokens
    through = {}
    for path, is_over, after in simulated:
        # The return of the environment alone at an end, a value elsewhere.
        assert after == (0.0 if is_over else worth(path))
        to_go = after
        for end in range(len(path), 0, -1):
            to_go = REWARDS[path[end - 1]] + GAMMA * to_go
            through.setdefault(path[:end], []).append(to_go)
    turns = {walked(turn): turn for turn in turns_below(root)}
    assert turns.keys() == through.keys()
    for path, turn in turns.items():
        assert turn.visits == len(through[path])
        assert turn.value == pytest.approx(np.mean(through[path]), abs=1e-12)
    ends = [turn.after is None for turn in turns.values()]
    assert any(ends) and ends.count(False) > 2


def test_values_decide_which_turn_is_played():
    task = Task(group_id=0, rollout=0, seed=SEED)
    settings = dataclasses.replace(CRITIC, simulations=12, width=4)
    first = [scripted_reply(SEED, (), n)[0] for n in range(settings.width)]
    assert {"a", "b"} <= {text.lower() for text in first}

    def likes(letter):
        return lambda episodes: [
            2.0 * (e.get_actions()[0].lower() == letter) for e in episodes
        ]

    for letter in "ab":
        (search,) = search_tasks(ScriptedRunner(), [task], settings, likes(letter))
        assert walked(search.played[0]) == letter
        assert search.outcome(0).stop_reason == "terminated"


def episodes_of(run, count=4):
    tasks = [
        dataclasses.replace(task, group_id=n)
        for n, task in enumerate(held_out_tasks(run.config, count))
    ]
    return run.runner.sample(tasks=tasks, explore=True)


def slow_values(learner, episode):
    """Return the value before the first token of each turn, from the plain model."""
    module, ids, values = learner.module["default_policy"].unwrapped(), [], []
    for turn in episode.get_extra_model_outputs(columns.TURN):
        ids += turn.prompt_ids.tolist()
        with torch.no_grad():
            out = module.lm.base_model(input_ids=torch.tensor([ids]))
            values.append(float(module.value_head(out.last_hidden_state)[0, -1]))
        ids += turn.action_ids.tolist()
    return values


class AlgoWithLearner(Algo):
    """The same with a Learner, as ``map_units`` of a local group calls it."""

    def __init__(self, run):
        super().__init__(run)
        self.learner = run.learner

    def map_units(self, method, units):
        return getattr(self.learner, method)(units)

    score_turns = TrainsScorer.score_turns


@pytest.fixture(scope="module")
def ppo():
    run = Run(single_config(env=Lock))
    wake_critic(run.learner, "default_policy")
    return run


def test_values_of_places_are_those_that_gae_reads(ppo):
    episodes = episodes_of(ppo)
    whole = [WholeEpisode(episode) for episode in episodes]
    values = ppo.learner.place_values(whole)
    read = batches(ppo.learner, episodes)["default_policy"]
    turns = np.asarray(read[columns.TURN_IDS])
    owners = np.asarray(read[columns.EPISODE_INDEX])
    of_tokens = read[columns.VALUES].numpy()
    for number, (episode, found) in enumerate(zip(episodes, values, strict=True)):
        assert len(found) == len(episode) == 3
        assert found == pytest.approx(slow_values(ppo.learner, episode), abs=1e-5)
        (row,) = np.flatnonzero(owners == number)
        for turn in range(3):
            column = int(np.argmax(turns[row] == turn))
            assert found[turn] == pytest.approx(of_tokens[row, column], abs=1e-6)
    assert np.std(np.concatenate(values)) > 1e-3
    assert ppo.learner.place_values([]) == []
    after = place_values(AlgoWithLearner(ppo), CRITIC)(episodes)
    assert after == pytest.approx([float(v[-1]) for v in values], abs=1e-6)


def test_logits_of_returns_are_values_in_0_to_1(ppo):
    whole = [WholeEpisode(episode) for episode in episodes_of(ppo, 2)]
    logits = ppo.learner.place_values(whole)
    ppo.learner.config = ppo.learner.config.copy(copy_frozen=False)
    ppo.learner.config.value_loss = "bce"
    chances = ppo.learner.place_values(whole)
    ppo.learner.config.value_loss = "squared"
    for logit, chance in zip(logits, chances, strict=True):
        assert chance == pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-6)


def test_the_critic_spares_the_tokens_of_whole_episodes(ppo):
    by_critic = evaluate_search(AlgoWithLearner(ppo), 3, mcts=CRITIC)
    rollout = dataclasses.replace(CRITIC, evaluate="rollout")
    by_rollout = evaluate_search(AlgoWithLearner(ppo), 3, mcts=rollout)
    tokens = [r.rows[-1].tokens for r in (by_critic, by_rollout)]
    assert by_critic.rows[-1].name == "mcts" and tokens[0] < tokens[1]
    assert all(o.turns == 3 for o in by_critic.outcomes["mcts"])


@pytest.mark.parametrize("loss, pool", [("outcome", "last"), ("return", "mean")])
def test_the_scorer_estimates_what_the_episode_earns_from_there(loss, pool):
    read = {"rewards": ["environment", {"name": "scorer", "weight": 0.1}]}
    run = Run(
        single_config(
            GRPOConfig,
            env=Lock,
            rollouts={**read, "group_size": 2},
            scorer={"loss": loss, "pool": pool},
        )
    )
    head = run.learner.module["scorer"].unwrapped().value_head
    with torch.no_grad():
        noise = torch.randn(head.out.weight.shape, generator=torch.manual_seed(5))
        head.out.weight.copy_(noise)
    algo = AlgoWithLearner(run)
    episodes = episodes_of(run)
    for episode in episodes:
        episode.rewards.data[0] = 0.25  # rewarded before the place
    scores = run.learner.score_turns(
        [WholeEpisode(e, module_id="scorer") for e in episodes]
    )
    settings = MctsSettings(simulations=6, width=3, evaluate="scorer")
    values = place_values(algo, settings)(episodes)
    assert np.std(values) > 1e-4
    for value, of_turns, episode in zip(values, scores, episodes, strict=True):
        # The scores of turns in order do not read the turns after them.
        before = of_turns[:-1]
        score = before[-1] if pool == "last" else sum(before) / len(before)
        if loss == "outcome":
            expected = 1 / (1 + math.exp(-score))
        else:
            expected = score - sum(episode.get_rewards()[:-1])
        assert value == pytest.approx(expected, abs=1e-5)
    result = evaluate_search(algo, 2, mcts=settings)
    assert [row.name for row in result.rows][-1] == "mcts"
    assert all(o.turns == 3 for o in result.outcomes["mcts"])


def test_a_conversation_has_the_score_that_the_loss_reads():
    assert pooled([0.5, -0.25, 1.0], "last") == 1.25  # of increments
    assert pooled([0.5, -0.25, 1.0], "sum") == 1.25
    assert pooled([0.5, -0.5, 1.5], "mean") == 0.5


@pytest.mark.parametrize(
    "config, evaluate, message",
    [
        (GRPOConfig, "critic", "run has no critic.*LLMPPO, or evaluate='rollout'"),
        (GRPOConfig, "scorer", "run has no scorer.*scorer.loss='return'"),
        (LLMPPOConfig, "scorer", "run has no scorer"),
    ],
)
def test_what_the_run_has_not_trained_is_refused(config, evaluate, message):
    given = single_config(config, env=Lock, rollouts={"group_size": 2})
    algo = Algo(Run(given, learner=False))
    with pytest.raises(ConfigError, match=message):
        evaluate_search(algo, 2, mcts=MctsSettings(evaluate=evaluate))


@pytest.mark.parametrize("loss", ["pairwise", "expert", "td", "monte_carlo"])
def test_scores_without_the_unit_of_returns_are_refused(loss):
    algo = type("Algo", (), {"config": LLMPPOConfig()})
    algo.config.scorer_loss = loss
    with pytest.raises(ConfigError, match=f"one with the loss '{loss}'"):
        place_values(algo, MctsSettings(evaluate="scorer"))
