"""Environments in other programs, over RLlib's RLlink, with real processes."""

from __future__ import annotations

import contextlib
import gc
import socket
import sys
import threading
import time
from pathlib import Path

import msgpack
import numpy as np
import pytest
from ray.rllib.env.external import rllink
from ray.rllib.env.external.rllink import RLlink

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.envs import make_env
from rllib_llm.envs.adapters.rllink import ExternalUnavailable
from rllib_llm.errors import ConfigError, EnvContractError

GAME = [sys.executable, str(Path(__file__).with_name("external_game.py"))]
RNG = np.random.default_rng(0)


@pytest.fixture
def game():
    env = make_env("external-v0", {"command": GAME, "timeout_s": 30})
    yield env
    env.close()


def played(env, seed, **options):
    texts = [env.reset(seed=seed, options=options)[0]]
    while True:
        text, reward, terminated, truncated, info = env.step(env.expert_action(RNG))
        texts.append(text)
        if terminated or truncated:
            return texts, reward, info


def test_a_seed_determines_an_episode(game):
    texts, reward, info = played(game, 3)
    assert played(game, 3)[0] == texts
    assert len({str(played(game, seed)[0]) for seed in range(8)}) > 1
    assert (reward, info["success"], info["metrics"]) == (1.0, True, {"right": 2.0})


def test_the_split_and_options_reach_the_program(game):
    splits = [
        [played(game, seed, split=split)[0] for seed in range(4)]
        for split in ("train", "test")
    ]
    assert splits[0] != splits[1]
    env = make_env("external-v0", {"command": GAME, "episode_options": {"turns": 4}})
    assert len(played(env, 0)[0]) == 5
    env.close()


def test_wrong_actions_have_no_reward(game):
    game.reset(seed=0)
    assert game.step("purple")[1] == 0.0
    *_, terminated, _, info = game.step("purple")
    assert terminated and info["success"] is False


def test_an_episode_that_was_given_up(game):
    game.reset(seed=3)
    game.step("red")
    again = played(game, 3)[0]
    assert again == played(game, 3)[0] and len(again) == 3


def test_a_turn_limit_truncates():
    env = make_env("external-v0", {"command": GAME, "max_turns": 1})
    env.reset(seed=0)
    assert env.step("red")[2:4] == (False, True)
    assert len(played(env, 0)[0]) == 2
    env.close()


def test_a_program_that_dies_is_started_again(game):
    game.reset(seed=0)
    first = game.unwrapped._listener._process
    first.kill()
    with pytest.raises(ExternalUnavailable, match="does not answer"):
        for _ in range(2):
            game.step("red")
    assert played(game, 0)[2]["success"]
    assert game.unwrapped._listener._process.pid != first.pid
    game.close()
    assert game.unwrapped._listener is None


def test_a_collected_environment_ends_its_program():
    env = make_env("external-v0", {"command": GAME})
    env.reset(seed=0)
    process = env.unwrapped._listener._process
    del env
    gc.collect()
    assert process.poll() is not None


def test_a_waiting_call_can_be_interrupted():
    port = free_port()
    env = make_env("external-v0", {"listen": f"127.0.0.1:{port}", "timeout_s": 60})
    ended = threading.Event()

    def silent():
        with connected(port) as sock:
            sock.sendall(START)
            time.sleep(0.5)
            env.unwrapped.interrupt()
            ended.wait(20)  # the connection is open meanwhile

    thread = threading.Thread(target=silent, daemon=True)
    thread.start()
    began = time.monotonic()
    with pytest.raises(ExternalUnavailable, match="does not answer"):
        env.reset(seed=0)
    assert time.monotonic() - began < 15
    ended.set()
    thread.join(10)
    env.close()


def test_a_program_that_does_not_connect():
    env = make_env("external-v0", {"command": "sleep 60", "timeout_s": 0.2})
    with pytest.raises(ExternalUnavailable, match="No program connected"):
        env.reset(seed=0)
    env.close()
    env = make_env("external-v0", {"command": "false", "timeout_s": 1.0})
    with pytest.raises(ExternalUnavailable, match="ended with status 1"):
        env.reset(seed=0)
    env.close()


# Programs that something else starts -------------------------------------------------


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


class Peer:
    """A client that uses RLlib's own functions."""

    def __init__(self, port, monkeypatch):
        # Without msgpack_numpy, which they would import.
        monkeypatch.setattr(rllink, "msgpack", msgpack)
        self.sock = connected(port)

    def send(self, kind, **fields):
        rllink.send_rllink_message(self.sock, {"type": kind, **fields})

    def ask(self, kind, **fields):
        self.send(kind, **fields)
        return rllink.get_rllink_message(self.sock)


def test_clients_with_the_functions_of_rllib(monkeypatch):
    port = free_port()
    envs = [make_env("external-v0", {"listen": f"127.0.0.1:{port}"}) for _ in "ab"]
    got = {}

    def play(number):
        peer = Peer(port, monkeypatch)
        assert peer.ask("PING") == (RLlink.PONG, {})
        kind, episode = peer.ask("START_EPISODE")
        assert kind == RLlink.START_EPISODE and episode["split"] == "train"
        kind, answer = peer.ask("GET_ACTION", observation=f"seed {episode['seed']}")
        got[episode["seed"]] = answer["action"]
        peer.send("LOG_RETURNS", reward=0.5)
        peer.send("LOG_RETURNS", reward=1)
        peer.send("END_EPISODE", observation="bye", truncated=number == 1)

    threads = [threading.Thread(target=play, args=(n,), daemon=True) for n in range(2)]
    resets = {}
    starts = [
        threading.Thread(
            target=lambda i=i, env=env: resets.update({i: env.reset(seed=10 + i)})
        )
        for i, env in enumerate(envs)
    ]
    for thread in [*starts, *threads]:
        thread.start()
    for thread in starts:
        thread.join(20)
    assert [resets[i][0] for i in range(2)] == ["seed 10", "seed 11"]
    ends = [env.step(f"go {i}") for i, env in enumerate(envs)]
    assert got == {10: "go 0", 11: "go 1"}
    assert sorted(end[2:4] for end in ends) == [(False, True), (True, False)]
    assert all(end[:2] == ("bye", 1.5) and end[4]["success"] is None for end in ends)
    for env in envs:
        env.close()
    with socket.create_server(("127.0.0.1", port)):
        pass  # the address is free again


def connected(port):
    """Return a connection, as soon as something listens."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port))
        time.sleep(0.01)
    raise AssertionError(f"nothing listens at port {port}")


def framed(fields):
    body = msgpack.packb(fields)
    return b"%08d" % len(body) + body


START = framed({"type": "START_EPISODE"})
ASK = framed({"type": "GET_ACTION", "observation": "?"})


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "in place of the length"),
        (b"99999999" + b"x", "at most"),
        (b"00000003abc", "not msgpack"),
        (framed([1]), "in place of a map"),
        (framed({"kind": "PING"}), "without a type"),
        (framed({"type": "EPISODES", "episodes": []}), "ask for actions"),
        (framed({"type": "GET_STATE"}), "ask for actions"),
        (START + framed({"type": "GET_ACTION"}), "must be a text"),
        (START + framed({"type": "GET_ACTION", "observation": 3}), "must be a text"),
        (START + framed({"type": "END_EPISODE"}), "before its first"),
        (START + START, "in the middle"),
        (START + framed({"type": "LOG_RETURNS"}), "not a number"),
        (START + framed({"type": "LOG_RETURNS", "reward": True}), "not a number"),
    ],
)
def test_wrong_messages(sent, message):
    with pytest.raises(EnvContractError, match=message):
        exchange(sent)


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ({"success": "yes"}, "true or false"),
        ({"truncated": 1}, "true or false"),
        ({"metrics": {"a": "b"}}, "finite numbers"),
        ({"metrics": [1]}, "finite numbers"),
        ({"observation": 1}, "must be a text"),
    ],
)
def test_wrong_ends(end, message):
    with pytest.raises(EnvContractError, match=message):
        exchange(START + ASK + framed({"type": "END_EPISODE", **end}), "go")


def test_a_client_that_disconnects():
    with pytest.raises(ExternalUnavailable, match="disconnected"):
        exchange(START + b"0000")


def exchange(sent, action=None):
    """Play one episode against bytes that were all sent at once."""
    port = free_port()
    env = make_env("external-v0", {"listen": f"127.0.0.1:{port}", "timeout_s": 10})

    def client():
        # The environment may hang up first.
        with contextlib.suppress(OSError), connected(port) as sock:
            sock.sendall(sent)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1000):
                pass

    thread = threading.Thread(target=client, daemon=True)
    thread.start()
    try:
        env.reset(seed=0)
        return env.step(action)
    finally:
        env.close()
        thread.join(10)


# Settings -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one"),
        ({"command": "x", "listen": "127.0.0.1:1"}, "exactly one"),
        ({"listen": "5555"}, "host:port"),
        ({"listen": "127.0.0.1:99999"}, "host:port"),
        ({"command": []}, "command line"),
        ({"command": "no-such-program"}, "cannot be started"),
        ({"command": GAME, "timeout_s": 0}, "> 0 seconds"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ConfigError, match=message):
        make_env("external-v0", options).reset(seed=0)


def test_an_address_in_use():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        env = make_env("external-v0", {"listen": f"127.0.0.1:{sock.getsockname()[1]}"})
        with pytest.raises(ConfigError, match="free port"):
            env.reset(seed=0)


def test_there_are_no_snapshots(game):
    game.reset(seed=0)
    with pytest.raises(EnvContractError, match="cannot be copied"):
        game.unwrapped.snapshot()


def test_the_server_of_rllib_is_refused():
    from ray.rllib.env.external.env_runner_server_for_external_inference import (
        EnvRunnerServerForExternalInference,
    )

    config = LLMPPOConfig().environment("guess_number-v0")
    config.env_runners(env_runner_cls=EnvRunnerServerForExternalInference)
    with pytest.raises(ConfigError, match="external-v0"):
        config.validate()


@pytest.mark.slow
def test_training():
    config = (
        GRPOConfig()
        .environment("external-v0", env_config={"command": GAME})
        .language_model(model="tiny", tiny={"hidden_size": 64})
        .generation(max_new_tokens=8)
        .env_runners(num_envs_per_env_runner=4)
        .rollouts(episodes_per_iteration=32, group_size=8)
        .sft(demonstrations=200, mistake_rate=0.5, lr=2e-3, epochs=4)
        .training(lr=1e-3, minibatch_size=16, num_epochs=1)
    )
    algo = config.build_algo()
    success = [algo.train()["env_runners"]["success_rate"] for _ in range(8)]
    algo.stop()
    assert np.mean(success[-2:]) > np.mean(success[:2]) + 0.1
