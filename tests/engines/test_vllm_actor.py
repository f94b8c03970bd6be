"""ActorEngine with a torch engine in the actor: sharing, weights, restarts."""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
import time
import uuid

import engine_reference
import numpy as np
import pytest
import ray
from engine_reference import (
    build_model,
    check_turn,
    random_prompts,
    run_until_idle,
    turn_params,
)

from rllib_llm.data.types import FinishReason
from rllib_llm.engines import ActorEngine, SessionError, TorchEngine, generate
from rllib_llm.engines.base import ContextOverflowError
from rllib_llm.engines.vllm_actor import EngineDiedError
from rllib_llm.errors import ConfigError, ModelError
from rllib_llm.remote_calls import TimeLimit

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

CONTEXT = 200
DOOMED = 666

# Ray's workers cannot import test modules: pickle this one by value.
for module in (engine_reference, sys.modules[__name__]):
    ray.cloudpickle.register_pickle_by_value(module)

versions = itertools.count(1)


class Hosted(TorchEngine):
    """Counts calls other than requests, and fails on demand."""

    updates = sleeps = 0
    is_doomed = False

    def submit(self, session_id, new_token_ids, params, **settings):
        self.is_doomed |= params.seed == DOOMED
        return super().submit(session_id, new_token_ids, params, **settings)

    def step(self):
        if self.is_doomed:
            raise RuntimeError("out of memory")
        return super().step()

    def update_weights(self, named_tensors, version):
        self.updates += 1
        super().update_weights(named_tensors, version)

    def sleep(self):
        self.sleeps += 1

    def wake_up(self):
        self.sleeps += 100

    def stats(self):
        return super().stats() | {"updates": self.updates, "sleeps": self.sleeps}

    def reset_stats(self):
        super().reset_stats()
        self.updates = self.sleeps = 0


def build_engine(max_slots=8) -> TorchEngine:
    """Build an engine with weights of another seed, so that updates show."""
    model = build_model("qwen3", 1)
    return Hosted(model, max_slots=max_slots, max_context_tokens=CONTEXT)


@pytest.fixture(scope="module")
def name(ray_session):
    """Name of the actor that most tests share: starting one takes seconds."""
    name = f"engine-{uuid.uuid4().hex}"
    owner = make_client(name)
    generate(owner, [[1]], [turn_params(0)])
    owner.stats()
    yield name
    del owner


def make_client(name, **settings) -> ActorEngine:
    return ActorEngine(build_engine, name=name, max_context_tokens=CONTEXT, **settings)


def push(engine, model) -> int:
    version = next(versions)
    engine.update_weights(model.named_parameters(), version)
    return version


@pytest.fixture
def engine(name, model):
    engine = make_client(name)
    push(engine, model)
    yield engine
    engine.stats()  # so that the next test counts from zero


def test_turns_equal_full_forwards_and_use_the_cache(engine, model):
    histories = {}
    for turn in range(3):
        news = random_prompts(5, seed=turn)
        for i, new in enumerate(news):
            if turn == 0:
                engine.open(i)
            engine.submit(i, new, turn_params(10 * turn + i))
        for i, result in run_until_idle(engine).items():
            history = histories.get(i, []) + news[i]
            params = turn_params(10 * turn + i)
            histories[i] = check_turn(model, history, params, result)
            assert result.finish is FinishReason.LENGTH
            assert result.seconds > 0.0
    stats = engine.stats()
    assert stats["decoded_tokens"] == 3 * 5 * 12
    assert stats["cached_tokens"] > 0
    assert stats["reprefills"] == stats["engine_restarts"] == 0
    engine.reset_stats()
    assert set(engine.stats().values()) == {0}


def test_rewritten_histories_stop_tokens_and_overflow(engine, model):
    engine.open("s")
    engine.submit("s", [1, 2, 3], turn_params(0))
    run_until_idle(engine)
    params = turn_params(1, 30, stop_token_ids=tuple(range(0, 128, 7)))
    engine.submit("s", [1, 2, 9], params, extends=False)
    result = run_until_idle(engine)["s"]
    check_turn(model, [1, 2, 9], params, result)
    assert result.finish is FinishReason.STOP
    with pytest.raises(ContextOverflowError, match="max_context_tokens"):
        engine.submit("s", [1] * CONTEXT, turn_params(0))
    with pytest.raises(ConfigError, match="tokenizer"):
        engine.submit("s", [1], turn_params(0, stop_strings=("x",)))


def test_abort_keeps_the_prompt_and_close_deletes_it(engine, model):
    engine.open("a")
    engine.open("b")
    first = engine.submit("a", [1, 2, 3], turn_params(0, 150))
    engine.submit("b", [4, 5], turn_params(1))
    engine.step()
    engine.abort(first)
    engine.abort(first)
    engine.submit("a", [], turn_params(0))
    with pytest.raises(SessionError, match="busy"):
        engine.submit("a", [1], turn_params(0))
    results = run_until_idle(engine)
    check_turn(model, [1, 2, 3], turn_params(0), results["a"])
    if "b" in results:  # otherwise it finished in the first step
        check_turn(model, [4, 5], turn_params(1), results["b"])
    engine.submit("b", [7], turn_params(2))
    engine.close("b")
    assert engine.num_unfinished == 0
    assert engine.step() == []
    engine.open("b")
    engine.submit("b", [8], turn_params(3))
    check_turn(model, [8], turn_params(3), run_until_idle(engine)["b"])


def test_new_weights_are_used_with_their_version(engine, model):
    old_version, other = engine.weights_version, build_model("qwen3", 2)
    (old,) = generate(engine, [[1, 2]], [turn_params(0)])
    new_version = push(engine, other)
    (new,) = generate(engine, [[1, 2]], [turn_params(0)])
    check_turn(model, [1, 2], turn_params(0), old)
    check_turn(other, [1, 2], turn_params(0), new)
    assert (old.weights_version, new.weights_version) == (old_version, new_version)
    with pytest.raises(ModelError, match="update_weights"):
        engine.set_weights_version(8)
    # As after restoring a checkpoint: this client returns to an older version.
    engine.update_weights(model.named_parameters(), old_version)
    (restored,) = generate(engine, [[1, 2]], [turn_params(0)])
    check_turn(model, [1, 2], turn_params(0), restored)
    # Different weights of the same version are sent.
    engine.update_weights(other.named_parameters(), old_version)
    (changed,) = generate(engine, [[1, 2]], [turn_params(0)])
    check_turn(other, [1, 2], turn_params(0), changed)


def test_clients_share_one_actor_and_each_version_is_sent_once(name, engine, model):
    clients = [engine, make_client(name)]
    results = [None, None]

    def play(i):
        clients[i].update_weights(model.named_parameters(), version)
        prompts, params = random_prompts(4, seed=i), [turn_params(j) for j in range(4)]
        results[i] = (prompts, params, generate(clients[i], prompts, params))

    for _ in range(2):
        version = next(versions)
        threads = [threading.Thread(target=play, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for prompts, params, done in results:
            for prompt, param, result in zip(prompts, params, done, strict=True):
                check_turn(model, prompt, param, result)
                assert result.weights_version == version
    engine.sleep()
    engine.wake_up()
    late = make_client(name)  # a restarted runner must not overwrite newer weights
    late.update_weights(build_model("qwen3", 5).named_parameters(), 0)
    (result,) = generate(late, [[1, 2]], [turn_params(0)])
    check_turn(model, [1, 2], turn_params(0), result)
    assert result.weights_version == version
    parts = [client.stats() for client in (late, *clients)]
    total = {key: sum(p.get(key, 0) for p in parts) for key in parts[0]}
    assert (total["updates"], total["sleeps"]) == (2, 101)
    assert total["decoded_tokens"] == 2 * 2 * 4 * 12 + 12
    assert total["engine_restarts"] == 0


def test_step_returns_after_wait_s_without_results(name, model):
    engine = make_client(name, wait_s=0.0)
    push(engine, model)
    engine.open("s")
    engine.submit("s", [1], turn_params(0, 150))
    assert engine.step() == []
    assert engine.num_unfinished == 1
    result = run_until_idle(engine)["s"]
    assert len(result.token_ids) == 150
    assert np.isfinite(result.logps).all()


def test_the_first_request_starts_the_actor(model):
    engine = make_client(f"lazy-{uuid.uuid4().hex}")
    push(engine, model)
    engine.sleep()
    engine.wake_up()
    assert engine.stats() == {"engine_restarts": 0}
    with pytest.raises(ValueError, match="Failed to look up actor"):
        ray.get_actor(engine._options["name"])


def test_the_engines_own_errors_reach_the_client(engine, model):
    broken = build_model("qwen3")
    broken.lm_head.weight.data.fill_(float("nan"))
    push(engine, broken)
    with pytest.raises(ModelError, match="not finite"):
        generate(engine, [[1, 2]], [turn_params(0)])
    push(engine, model)
    (result,) = generate(engine, [[1, 2]], [turn_params(0)])
    check_turn(model, [1, 2], turn_params(0), result)
    with pytest.raises(ModelError, match="no weights 'nonsense'"):
        engine.update_weights([("nonsense", model.lm_head.weight)], 10**6)


@pytest.mark.slow
def test_a_dead_actor_is_restarted_with_its_unfinished_turns(name, engine, model):
    clients = [engine, make_client(name)]
    version = next(versions)
    for client in clients:
        client.update_weights(model.named_parameters(), version)
        client.open("s")
        client.submit("s", [1, 2, 3], turn_params(0))
        check_turn(model, [1, 2, 3], turn_params(0), run_until_idle(client)["s"])
        client.submit("s", [4, 5], turn_params(1, 100))
        client._exchange(client._host)  # sent, and lost with the actor
    histories = [list(client._sessions["s"].history) for client in clients]
    ray.kill(ray.get_actor(name))
    for client, history in zip(clients, histories, strict=True):
        result = run_until_idle(client)["s"]
        check_turn(model, history, turn_params(1, 100), result)
        assert result.weights_version == version
    assert sum(c.stats()["engine_restarts"] for c in clients) == 1


@pytest.mark.slow
def test_an_actor_that_fails_repeatedly_raises(model, monkeypatch):
    monkeypatch.setattr("rllib_llm.engines.vllm_actor._MAX_FAILURES", 1)
    engine = make_client(f"doomed-{uuid.uuid4().hex}")
    push(engine, model)
    engine.open("s")
    engine.submit("s", [1], turn_params(DOOMED))
    with pytest.raises(EngineDiedError, match="out of memory"):
        run_until_idle(engine)


@pytest.mark.slow
def test_an_engine_that_cannot_be_built_raises_at_once():
    engine = ActorEngine(
        functools.partial(build_engine, max_slots=0),
        name=f"unbuilt-{uuid.uuid4().hex}",
        max_context_tokens=9,
    )
    engine.open("s")
    engine.submit("s", [1], turn_params(0))
    with pytest.raises(EngineDiedError, match=r"failed 1 times(.|\n)*max_slots"):
        engine.step()


class Stuck(Hosted):
    """Hangs in a step as long as a file exists."""

    marker = ""

    def step(self):
        while os.path.exists(self.marker):
            time.sleep(0.1)
        return super().step()


def build_stuck(marker) -> TorchEngine:
    engine = Stuck(build_model("qwen3", 1), max_slots=8, max_context_tokens=CONTEXT)
    engine.marker = marker
    return engine


def test_an_actor_that_does_not_answer_is_restarted(model, tmp_path, caplog):
    marker = tmp_path / "stuck"
    engine = ActorEngine(
        functools.partial(build_stuck, str(marker)),
        name=f"engine-{uuid.uuid4().hex}",
        max_context_tokens=CONTEXT,
    )
    version = push(engine, model)
    before = generate(engine, [[1, 2, 3]], [turn_params(0)])
    call, usual = engine._call, engine._limit

    def limited(host, name, *arguments):
        # Not the start of the new actor, which takes seconds.
        short = TimeLimit(3.0, "fault_tolerance.call_timeout_s")
        engine._limit = short if name == "exchange" and marker.exists() else usual
        return call(host, name, *arguments)

    engine._call = limited
    marker.touch()
    threading.Timer(5.0, marker.unlink).start()
    after = generate(engine, [[1, 2, 3]], [turn_params(0)])
    assert engine.stats()["engine_restarts"] == 1
    assert np.array_equal(before[0].token_ids, after[0].token_ids)
    assert (
        f"in exchange() with weights version {version} did not answer within 3 s"
        in caplog.text
    )
