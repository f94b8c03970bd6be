"""Games on OpenEnv servers: the client and the server's sessions, without OpenEnv."""

from __future__ import annotations

import json
import threading
from http import HTTPStatus

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test
from team_helpers import Run, team_config

from rllib_llm import LLMPPOConfig
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import Task
from rllib_llm.envs import (
    MultiAgentAdapter,
    MultiAgentTextEnv,
    Outcome,
    TextEnv,
    ToolEnv,
    TurnResult,
    check_env,
    make_env,
)
from rllib_llm.envs.adapters.openenv_server import GameSession, TextSession
from rllib_llm.envs.go_to import snapshot_of
from rllib_llm.envs.make import make_playable
from rllib_llm.errors import ConfigError, EnvContractError

pytest.importorskip("websockets")
from websockets.sync.server import serve

from rllib_llm.envs.adapters.openenv_client import OpenEnvUnavailable

GAMES = {
    "secret_sum-v0": {"agents": 3},
    "dilemma-v0": {},
    "negotiation-v0": {},
    "path_checker-v0": {"max_turns": 3},
    "scout_porter-v0": {},
    "service_talk-v0": {},
}


class Twice(MultiAgentTextEnv):
    """Rewards each turn and each round."""

    possible_agents = ["ann_0", "ben_0"]
    simultaneous = True

    def start(self, rng):
        """Do nothing."""

    def prompt_for(self, agent):
        return "Go."

    def apply(self, agent, action):
        return Outcome({agent: 1.0})

    def end_round(self):
        return Outcome({"ann_0": 0.5}, terminated=True)


class Server:
    """Sends the messages of an OpenEnv server whose environment is a game."""

    def __init__(self, name, config=None):
        self._make = lambda: GameSession(make_env(name, config))
        self.agents = {"default": self._make().possible_agents}
        self.received, self.changes = [], {}
        self._server = serve(self._play, "127.0.0.1", 0, process_request=self._http)
        self.url = f"http://127.0.0.1:{self._server.socket.getsockname()[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _http(self, connection, request):
        if request.path == "/schema":
            schema = {"properties": {"possible_agents": self.agents}}
            text = json.dumps({"action": {}, "observation": schema})
            return connection.respond(HTTPStatus.OK, text)
        return None

    def _play(self, connection):
        session = self._make()
        for message in connection:
            content = json.loads(message)
            self.received.append(content)
            connection.send(json.dumps(self._answer(session, **content)))

    def _answer(self, session, type, data):
        if type == "step" and self.changes.get("reject"):
            data = {"message": "texts", "code": "VALIDATION_ERROR"}
            return {"type": "error", "data": data}
        if type == "reset":
            options = {k: v for k, v in data.items() if k != "seed"}
            result = session.reset(data.get("seed"), options)
        else:
            result = session.step(data["texts"])
        seen = {"possible_agents": session.possible_agents, "system_prompts": {}}
        seen |= json.loads(json.dumps(result)) | self.changes
        data = {"observation": seen, "reward": 0.0, "done": session.is_over}
        return {"type": "observation", "data": data}

    def close(self):
        self._server.shutdown()


@pytest.fixture
def start():
    started = []

    def server_of(*args):
        started.append(Server(*args))
        return started[-1]

    yield server_of
    for server in started:
        server.close()


def summary(step):
    rewards = {}
    for agent, reward in step.rewards:
        rewards[agent] = rewards.get(agent, 0.0) + reward
    invalid = {a for a, info in step.infos.items() if info.get("invalid_action")}
    kept = (
        *("observations", "terminated", "truncated", "final_observations"),
        *("is_over", "success", "metrics", "stop_reason"),
    )
    values = {name: getattr(step, name) for name in kept}
    return {**values, "rewards": rewards, "invalid": invalid}


@pytest.mark.parametrize("name", GAMES)
def test_episodes_are_those_of_the_game_itself(start, name):
    local = make_playable(name, GAMES[name])
    url = start(name, GAMES[name]).url
    served = make_playable("openenv_game-v0", {"url": url, "send_split": True})
    assert served.possible_agents == local.possible_agents
    for seed in range(6):
        rng = np.random.default_rng(seed)
        options = {"split": "test" if seed % 2 else "train"}
        expected = local.reset(seed=seed, options=options)
        step = served.reset(seed=seed, options=options)
        for agent in local.possible_agents:
            assert served.system_prompt_for(agent) == local.system_prompt_for(agent)
        while True:
            assert summary(step) == summary(expected)
            assert served.live_agents == local.live_agents
            if expected.is_over:
                break
            game = local.unwrapped
            scripts = game.expert_action, game.random_action, lambda *_: "nonsense"
            script = scripts[rng.choice(3, p=[0.7, 0.2, 0.1])]
            texts = {agent: script(agent, rng) for agent in expected.observations}
            expected, step = local.step(texts), served.step(texts)
    served.close()


def test_pettingzoo_and_the_checks_find_nothing(start):
    config = {"url": start("dilemma-v0").url}
    parallel_api_test(make_env("openenv_game-v0", config))
    report = check_env("openenv_game-v0", config)
    assert report.ok and "warning" not in str(report), str(report)


def test_turns_are_sampled_from_policies(start):
    config = {"url": start("secret_sum-v0").url}
    config = team_config(
        "openenv_game-v0",
        LLMPPOConfig,
        env_config=config,
        mapping={"alice_0": "a", "bob_0": "b"},
        slots=2,
    )
    run = Run(config, learner=False)
    episodes = run.runner.sample(tasks=[Task(i, 0, i) for i in range(3)])
    local = make_playable("secret_sum-v0")
    for seed, episode in enumerate(episodes):
        alice = episode.agent_episodes["alice_0"]
        prompt = local.reset(seed=seed).observations["alice_0"]
        assert alice.module_id == "a"
        assert prompt in episode_data(alice).messages[0]["content"]
    run.runner.stop()


def test_options_are_those_of_the_game(start):
    server = start("secret_sum-v0")
    config = {"url": server.url, "reset_options": {"partial": 0.5}}
    env = make_playable("openenv_game-v0", config)
    env.reset(seed=5, options={"split": "test"})
    sent = {"type": "reset", "data": {"seed": 5, "partial": 0.5}}
    assert server.received == [sent]
    with pytest.raises(ConfigError, match="cannot change between the episodes"):
        env.reset(seed=5, options={"timeout_s": 3.0})
    env.close()


def test_the_clients_limit_on_turns_truncates_all_agents(start):
    url = start("dilemma-v0").url
    env = make_playable("openenv_game-v0", {"url": url, "max_turns": 1})
    step = env.reset(seed=0)
    step = env.step(dict.fromkeys(step.observations, "cooperate"))
    assert (step.is_over, step.stop_reason) == (True, "max_turns")
    assert step.truncated == tuple(env.possible_agents)
    assert all(step.final_observations[agent] for agent in env.possible_agents)
    assert env.reset(seed=0).observations
    env.close()


def test_states_of_a_server_are_not_saved(start):
    env = make_env("openenv_game-v0", {"url": start("secret_sum-v0").url})
    env.reset(seed=0)
    with pytest.raises(EnvContractError, match="cannot be copied"):
        env.snapshot()
    assert snapshot_of(env) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"texts": None}, "is not a game of several agents.*texts=None"),
        ({"possible_agents": ["ann_0"]}, r"has the agents \['ann_0'\]"),
    ],
)
def test_strange_observations_are_errors(start, changes, message):
    server = start("secret_sum-v0")
    env = make_env("openenv_game-v0", {"url": server.url})
    server.changes = changes
    with pytest.raises(EnvContractError, match=message):
        env.reset(seed=0)


def test_other_servers_are_refused(start):
    server = start("secret_sum-v0")
    game = MultiAgentAdapter(make_env("openenv_game-v0", {"url": server.url}))
    server.changes = {"reject": True}
    step = game.reset(seed=0)
    with pytest.raises(EnvContractError, match="it rejects texts by agent: texts"):
        game.step(dict.fromkeys(step.observations, "say 1"))
    server.agents = {}
    with pytest.raises(EnvContractError, match="its schema names no agents"):
        make_playable("openenv_game-v0", {"url": server.url})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "needs the address of a server of a game"),
        ({"url": "http://localhost", "timeout_s": 0.0}, "timeout_s=0.0 must be > 0"),
        ({"url": "localhost:8000"}, "not an address of an OpenEnv server"),
    ],
)
def test_wrong_options_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        make_playable("openenv_game-v0", config)


def test_a_server_that_is_not_there_is_named():
    config = {"url": "http://127.0.0.1:1", "timeout_s": 5.0}
    with pytest.raises(OpenEnvUnavailable, match=r"127\.0\.0\.1:1.*Check that it runs"):
        make_playable("openenv_game-v0", config)
    env = make_playable("openenv_game-v0", {**config, "agents": ["ann_0", "bob_0"]})
    assert env.possible_agents == ["ann_0", "bob_0"]


def test_rewards_of_a_step_are_summed():
    session = GameSession(Twice())
    assert session.reset(0, {})["rewards"] == {}
    result = session.step({"ann_0": "a", "ben_0": "b"})
    assert result["rewards"] == {"ann_0": 1.5, "ben_0": 1.0}
    assert session.is_over and result["agents"] == []


def test_games_that_are_not_texts_are_not_served():
    with pytest.raises(EnvContractError, match="showed a picture"):
        GameSession(make_env("half_grids-v0")).reset(0, {})


class Teller(TextEnv):
    system_prompt = "Be brief."

    def start(self, rng):
        return "Say yes."

    def reply(self, action):
        return TurnResult("Over.", 1.0, terminated=True, success=True)


class Adder(ToolEnv):
    tool_format = "hermes"

    def start(self, rng):
        self.tools = [add]
        return "Add 2 and 3."


def add(a: int, b: int) -> int:
    """Return the sum.

    Args:
        a: A number.
        b: A number.
    """
    return a + b


def test_the_first_text_of_one_agent_holds_its_system_prompt_and_tools():
    assert TextSession(Teller()).reset(0, {}) == "Be brief.\n\nSay yes."
    text = TextSession(Adder()).reset(0, {})
    assert text.endswith("\n\nAdd 2 and 3.")
    assert '"add"' in text and "Return the sum." in text


def test_one_agent_that_reads_more_than_a_text_is_not_served(tmp_path):
    with pytest.raises(EnvContractError, match="showed a picture"):
        TextSession(make_env("colour_grid-v0")).reset(0, {})
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 + 2?"},
    ]
    file = tmp_path / "rows.jsonl"
    rows = [
        {"prompt": [messages[0], {**messages[1], "content": f"2 + {n}?"}], "answer": n}
        for n in range(40)
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    env = make_env("dataset-v0", {"path": str(file), "grader": "number"})
    with pytest.raises(EnvContractError, match="earlier messages"):
        TextSession(env).reset(0, {})
