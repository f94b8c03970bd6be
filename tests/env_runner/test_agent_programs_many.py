"""Many programs at once, and hostile requests."""

import collections
import threading

import agent_program_toys as toys
import numpy as np
import pytest
from hostile_requests import HANGS_UP
from team_helpers import Run, team_config

from rllib_llm import LLMPPOConfig
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import Task
from rllib_llm.envs.agent_programs.endpoint import Endpoint

pytest.importorskip("aiohttp")


def turns(part):
    return part.get_extra_model_outputs(columns.TURN)


def recording(engines):
    """Return a list of all that the engines sample from now on."""
    sampled = []

    def recorded(step):
        def record():
            done = step()
            sampled.extend(done)
            return done

        return record

    for engine in {id(engine): engine for engine in engines}.values():
        engine.step = recorded(engine.step)
    return sampled


def bits(ids, logps):
    return ids.astype(np.int32).tobytes(), logps.astype(np.float32).tobytes()


@pytest.mark.slow
def test_64_programs_at_once_lose_and_mix_no_turn():
    toys.SEEN.pop("one_of_many", None)
    toys.TOGETHER = threading.Barrier(toys.MANY)
    config = team_config(
        "agent-v0",
        LLMPPOConfig,
        env_config={
            "program": "agent_program_toys:one_of_many",
            "models": ["even", "odd"],
        },
        policies=("a", "b"),
        mapping={"even": "a", "odd": "b"},
        rollouts={"step_timeout_s": 100.0},
        slots=toys.MANY,
    )
    run = Run(config, learner=False)
    sampled = recording(run.runner.engines.values())
    episodes = run.runner.sample(tasks=[Task(i, 0, 100 + i) for i in range(toys.MANY)])
    answers = {(s, n): (m, c) for s, n, m, c in toys.SEEN["one_of_many"]}
    recorded = collections.Counter()
    assert len(episodes) == toys.MANY
    assert len(toys.SEEN["one_of_many"]) == len(answers) == 3 * toys.MANY
    for episode in episodes:
        seed = episode_data(episode).task.seed
        numbers = collections.defaultdict(list)
        for agent, part in episode.agent_episodes.items():
            renderer = run.config.chat_renderers()[part.module_id]
            for turn in turns(part):
                recorded[bits(turn.action_ids, turn.action_logps)] += 1
                number = turn.env_t
                numbers[agent].append(number)
                model, choice = answers[seed, number]
                assert model == agent
                assert choice["token_ids"] == turn.action_ids.tolist()
                logps = [each["logprob"] for each in choice["logprobs"]["content"]]
                assert np.float32(logps).tobytes() == turn.action_logps.tobytes()
                text = renderer.tokenizer.decode(turn.prompt_ids)
                assert f"Seed {seed}, {number}." in text
                assert text.count("Seed ") == text.count(f"Seed {seed}, ")
        assert numbers == {"even": [0, 2], "odd": [1]}
    # What the programs received and what is trained is what the engines sampled.
    assert recorded == collections.Counter(bits(g.token_ids, g.logps) for g in sampled)
    assert recorded.total() == 3 * toys.MANY
    assert run.runner._rollout.slots[0].worker is not None
    run.runner.stop()


def besieged(requests):
    for name in ("besieged", "besieged_replies"):
        toys.SEEN.pop(name, None)
    config = team_config(
        "agent-v0",
        LLMPPOConfig,
        env_config={
            "program": "agent_program_toys:besieged",
            "tasks": [{"requests": requests}],
            "max_turns": 100_000,
        },
        policies=None,
        rollouts={"step_timeout_s": 100.0},
        slots=1,
    )
    run = Run(config, learner=False)
    (episode,) = run.runner.sample(tasks=[Task(0, 0, 0)])
    run.runner.stop()
    return episode, toys.SEEN["besieged"], toys.SEEN["besieged_replies"]


@pytest.mark.parametrize("requests", [68, pytest.param(1020, marks=pytest.mark.slow)])
def test_hostile_requests(requests):
    # Other tests of this process may have left episodes open.
    before = Endpoint.of_process().num_episodes
    episode, results, replies = besieged(requests)
    assert len(results) == requests
    statuses = collections.defaultdict(collections.Counter)
    for kind, status, body in results:
        statuses[kind][status] += 1
        if kind in HANGS_UP:
            assert status is None
        elif kind in ("huge_body", "no_http"):
            # The connection may be closed while the client still writes.
            assert status in (None, 400, 413), (kind, status, body)
        elif status != 200:
            assert status is not None and 400 <= status < 500, (kind, status, body)
            assert isinstance(body, dict), (kind, status, body)
            assert set(body["error"]) == {"message", "type", "param", "code"}, kind
            assert 0 < len(body["error"]["message"]) < 500
    for kind, status in [
        *[("wrong_key", 401), ("no_key", 401), ("other_episode", 404), ("path", 404)],
        *[("method", 405), ("cut_json", 400), ("nested", 400), ("huge_text", 400)],
    ]:
        assert set(statuses[kind]) <= {status, 401}, (kind, statuses[kind])
    # The program's own conversation went on, and each of its turns is recorded.
    (part,) = episode.agent_episodes.values()
    texts = list(part.get_actions())
    for reply in replies:
        assert reply["content"] in texts
    answered = sum(count[200] for count in statuses.values())
    assert len(texts) >= len(replies) + answered
    assert Endpoint.of_process().num_episodes <= before
