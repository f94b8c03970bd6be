"""Episodes of programs: rows, records, ends, failures."""

import sys
import time
from pathlib import Path

import agent_program_toys as toys
import numpy as np
import pytest
from ray.rllib.core.columns import Columns
from team_helpers import Run, team_config

from rllib_llm import GRPOConfig, LLMPPOConfig, MARFTConfig
from rllib_llm.algorithms.config.preflight import preflight
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import StopReason, Task
from rllib_llm.envs import make_env
from rllib_llm.errors import ConfigError, EnvContractError

pytest.importorskip("aiohttp")


def run_of(program, *, config_class=LLMPPOConfig, learner=False, **sections):
    env_config = {"program": f"agent_program_toys:{program}"}
    env_config |= sections.pop("env_config", {})
    rollouts = {"step_timeout_s": 20.0, **sections.pop("rollouts", {})}
    rollouts.setdefault("group_size", 2 if config_class is GRPOConfig else 1)
    config = team_config(
        "agent-v0",
        config_class,
        env_config=env_config,
        rollouts=rollouts,
        **sections,
    )
    return Run(config, learner=learner)


def sample(run, seeds=(0,)):
    tasks = [Task(i, 0, seed) for i, seed in enumerate(seeds)]
    return run.runner.sample(tasks=tasks)


def part_of(episode, agent="default_policy"):
    return episode.agent_episodes[agent]


def turns(part):
    return part.get_extra_model_outputs(columns.TURN)


def spied(run):
    """Record every Generation that the engine of a run returns."""
    engine, made = run.runner.engine, []
    step = engine.step

    def recording_step():
        done = step()
        made.extend(done)
        return done

    engine.step = recording_step
    return made


def test_an_episode_is_a_run_of_the_program():
    run = run_of("three_turns", policies=None)
    (episode,) = sample(run)
    part = part_of(episode)
    assert len(part) == 3 and part.is_terminated
    assert list(part.get_rewards()) == [0.0, 0.0, 1.0]
    assert all(t.extends and not t.conversation for t in turns(part))
    data = episode_data(part)
    assert [m["role"] for m in data.messages] == ["user", "assistant"] * 3
    assert episode_data(episode).success is True
    assert episode_data(episode).metrics == {"requests": 3.0, "conversations": 1.0}


def test_conversations_are_rows():
    toys.SEEN.pop("recording", None)
    run = run_of("recording", policies=None, learner=True)
    made = spied(run)
    (episode,) = sample(run)
    part = part_of(episode)
    records = turns(part)
    # a, b, the sub-agent's, on the first again, a branch, two replies to one request.
    assert [t.conversation for t in records] == [0, 0, 1, 0, 2, 1, 3]
    assert all(t.extends for t in records)
    assert episode_data(episode).metrics == {
        "requests": 7.0,
        "conversations": 4.0,
        "done": 1.0,
    }
    # The endpoint, the record and the engine agree, bit for bit.
    choices = [c for _, answer in toys.SEEN["recording"] for c in answer["choices"]]
    assert len(choices) == len(records) == len(made)
    for choice, turn, generation in zip(choices, records, made, strict=True):
        assert choice["token_ids"] == turn.action_ids.tolist()
        assert choice["token_ids"] == generation.token_ids.tolist()
        logps = [each["logprob"] for each in choice["logprobs"]["content"]]
        assert np.float32(logps).tobytes() == turn.action_logps.tobytes()
        assert turn.action_logps.tobytes() == generation.logps.tobytes()
    # Rows: one per conversation, each sampled token once, all in their context.
    episode_data(part).advantage = 1.0
    rows = batch_of(run, episode)
    assert len(rows[columns.TURN_IDS]) == 4
    sampled = rows[columns.TURN_IDS][rows[Columns.LOSS_MASK]]
    assert sorted(set(sampled.tolist())) == list(range(7))
    assert len(sampled) == sum(len(t.action_ids) for t in records)
    first = rows[columns.TURN_IDS][0]
    assert set(first[first >= 0].tolist()) == {0, 1, 3}
    for row, length in zip(
        rows[columns.INPUT_IDS], rows[columns.ATTENTION_MASK].sum(1)
    ):
        assert any(row[:length].tolist() == ids for ids in conversations_of(part))


def batch_of(run, episode):
    from rllib_llm.connectors.learner.token_rows import RowSettings, TokenRows

    connector = TokenRows({"default_policy": RowSettings(0, has_critic=False)})
    out = connector(rl_module=None, batch={}, episodes=[episode])
    return out["default_policy"]


def conversations_of(part):
    data = episode_data(part)
    return [data.ids, *(c.ids for c in data.other_conversations.values())]


def test_a_request_sees_what_its_conversation_held():
    """The prompt of the branch is rendered from its own messages only."""
    run = run_of("recording", policies=None)
    (episode,) = sample(run, seeds=(5,))
    renderer = run.runner.config.chat_renderer()
    branch = turns(part_of(episode))[4]
    text = renderer.tokenizer.decode(branch.prompt_ids)
    assert "Seed 5." in text and "Otherwise." in text and "Something" not in text


def test_models_are_policies():
    run = run_of(
        "relay",
        env_config={"models": ["writer", "reader"]},
        policies=("w", "r"),
        mapping={"writer": "w", "reader": "r"},
    )
    (episode,) = sample(run)
    writer, reader = part_of(episode, "writer"), part_of(episode, "reader")
    assert writer.module_id == "w" and reader.module_id == "r"
    assert [list(p.get_rewards()) for p in (writer, reader)] == [[0.25], [0.75]]
    assert writer.get_actions(0) in episode_data(reader).messages[0]["content"]


def test_a_function_grades_results():
    run = run_of(
        "three_turns", policies=None, env_config={"reward": "agent_program_toys:graded"}
    )
    (episode,) = sample(run, seeds=(7,))
    assert episode.get_return() == 1.0
    assert episode_data(episode).metrics["seed"] == 7.0


# Failures -----------------------------------------------------------------------------


def test_a_crash_is_a_dropped_episode_that_is_repeated():
    toys.SEEN.pop("crashing_once", None)
    run = run_of("crashing_once", policies=None)
    episodes = sample(run, seeds=(1, 2))
    assert [e.get_return() for e in episodes] == [1.0, 1.0]
    assert toys.SEEN["crashing_once"].count(1) == 2


def test_a_program_that_always_crashes_ends_the_run_with_its_trace():
    run = run_of("crashing", policies=None)
    with pytest.raises(EnvContractError, match="the program has a bug"):
        sample(run)


def test_crash_reward_makes_a_crash_an_outcome():
    run = run_of("crashing", policies=None, env_config={"crash_reward": -1.0})
    (episode,) = sample(run)
    assert episode.get_return() == -1.0 and episode.is_terminated
    assert episode_data(episode).success is False
    assert episode_data(episode).metrics["crashed"] == 1.0


def test_a_crash_keeps_its_turns_where_the_stop_policy_keeps_it():
    run = run_of(
        "crashing", policies=None, rollouts={"stop_policies": {"env_error": "mask"}}
    )
    (episode,) = sample(run)
    assert len(part_of(episode)) == 1
    data = episode_data(episode)
    assert data.stop_reason is StopReason.ENV_ERROR and "a bug" in data.error


@pytest.mark.parametrize(
    "program, error",
    [("silent", "without a request"), ("bad_result", "returned 'very good'")],
)
def test_programs_without_turns_or_rewards(program, error):
    run = run_of(program, policies=None)
    with pytest.raises(EnvContractError, match=error):
        sample(run)


def test_a_program_that_hangs_times_out():
    run = run_of(
        "stuck", policies=None, rollouts={"step_timeout_s": 0.3, "max_retries": 0}
    )
    with pytest.raises(EnvContractError, match="timeout"):
        sample(run)


@pytest.mark.parametrize("where", ["rollouts", "env_config"])
def test_requests_after_the_end_are_refused(where):
    toys.SEEN.pop("endless", None)
    run = run_of("endless", policies=None, **{where: {"max_turns": 3}})
    (episode,) = sample(run)
    assert len(part_of(episode)) == 3
    assert episode_data(episode).stop_reason in (
        StopReason.MAX_TURNS,
        StopReason.MAX_TOKENS_TURN,
    )
    for _ in range(100):
        if "endless" in toys.SEEN:
            break
        time.sleep(0.05)
    ((status, error),) = toys.SEEN["endless"]
    assert status == 410 and error["code"] == "episode_ended"


@pytest.mark.parametrize("config_class", [GRPOConfig, LLMPPOConfig])
def test_alternating_conversations_train(config_class):
    run = run_of(
        "recording",
        policies=None,
        config_class=config_class,
        learner=True,
    )
    episodes = run.sample(groups=2)
    before = run.weights()
    run.update(episodes)
    after = run.weights()
    assert any(not np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("config_class", [GRPOConfig, LLMPPOConfig, MARFTConfig])
def test_several_models_train_together(config_class):
    run = run_of(
        "two_writers",
        config_class=config_class,
        env_config={"models": ["writer", "reader"]},
        policies=("w", "r"),
        mapping={"writer": "w", "reader": "r"},
        learner=True,
    )
    episodes = run.sample(groups=4)
    before = {m: run.weights(m) for m in ("w", "r")}
    run.update(episodes)
    for module_id, weights in before.items():
        after = run.weights(module_id)
        assert any(not np.array_equal(weights[n], after[n]) for n in weights), module_id


def test_seeds_of_requests():
    toys.SEEN.pop("seeded", None)
    run = run_of("seeded", policies=None)
    run.runner.sample(tasks=[Task(0, rollout, 3) for rollout in range(2)])
    (one, many), (other, _) = toys.SEEN["seeded"]
    assert one[0] == one[1] != one[2]
    # Rollouts of a group must differ, or they could not be compared.
    assert one[0] != other[0]
    first, second = (c["message"]["content"] for c in many["choices"])
    assert first != second


def test_stop_strings_and_limits_of_requests():
    toys.SEEN.pop("stopped", None)
    run = run_of("stopped", policies=None, generation={"max_new_tokens": 64})
    (episode,) = sample(run)
    ((answer, short),) = toys.SEEN["stopped"]
    turn, last = turns(part_of(episode))
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop" and len(turn.action_ids) < 64
    assert not set("abcdefghijklmnop") & set(choice["message"]["content"])
    # The tokens of the string are sampled and stay in the record.
    assert choice["token_ids"] == turn.action_ids.tolist()
    text = run.runner.config.chat_renderer().decode(turn.action_ids.tolist())
    assert set("abcdefghijklmnop") & set(text)
    assert short["choices"][0]["finish_reason"] in ("length", "stop")
    assert len(last.action_ids) == 1


def test_a_conversation_that_does_not_fit_is_refused_and_the_episode_goes_on():
    toys.SEEN.pop("too_long", None)
    run = run_of("too_long", policies=None, generation={"max_context_tokens": 200})
    (episode,) = sample(run)
    ((status, answer),) = toys.SEEN["too_long"]
    assert status == 400
    assert answer["error"]["code"] == "context_length_exceeded"
    assert len(part_of(episode)) == 1 and episode.is_terminated


# Command lines ------------------------------------------------------------------------


def script(tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text(f"{CLIENT}\n{text}", encoding="utf-8")
    return f"{sys.executable} {path}"


CLIENT = """
import json, os, sys, time, urllib.request
task = json.load(sys.stdin)
body = {"model": os.environ["RLLIB_LLM_MODELS"].split(",")[0]}
body["messages"] = [{"role": "user", "content": f"Task {task['seed']}."}]
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    data=json.dumps(body).encode(),
    headers={"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
answer = json.load(urllib.request.urlopen(request, timeout=60))
"""


def test_a_command_line_is_a_program(tmp_path):
    result = "print('log'); print(json.dumps({'reward': 0.25, 'success': False}))"
    command = script(tmp_path, result)
    run = run_of("-", policies=None, env_config={"program": command})
    (episode,) = sample(run, seeds=(9,))
    assert episode.get_return() == 0.25
    assert "Task 9." in episode_data(part_of(episode)).messages[0]["content"]


@pytest.mark.parametrize(
    "text, error",
    [
        ("sys.exit('out of paper')", "status 1: out of paper"),
        ("os.kill(os.getpid(), 9)", "signal 9"),
        ("print('fine')", "returned 'fine'"),
    ],
)
def test_failures_of_a_command_line(tmp_path, text, error):
    run = run_of(
        "-",
        policies=None,
        env_config={"program": script(tmp_path, text)},
        rollouts={"max_retries": 0},
    )
    with pytest.raises(EnvContractError, match=error):
        sample(run)


def test_a_command_line_that_hangs_is_killed_with_its_children(tmp_path):
    pids = tmp_path / "pids"
    text = (
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)"
    )
    run = run_of(
        "-",
        policies=None,
        env_config={"program": script(tmp_path, text)},
        rollouts={"max_retries": 0, "step_timeout_s": 3.0},
    )
    with pytest.raises(EnvContractError, match="timeout"):
        sample(run)
    end = time.perf_counter() + 10
    while any(map(is_running, map(int, pids.read_text().split()))):
        assert time.perf_counter() < end
        time.sleep(0.05)


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# Options ------------------------------------------------------------------------------


def test_processes_of_environments_are_refused():
    with pytest.raises(ConfigError, match="command line"):
        run_of("three_turns", policies=None, rollouts={"env_processes": True})


@pytest.mark.parametrize(
    "options, error",
    [
        ({"program": None}, "needs a program"),
        ({"program": "no_such_module:program"}, "no_such_module"),
        ({"program": "agent_program_toys:MANY"}, "must be a function"),
        ({"program": "no-such-command --now"}, "cannot be started"),
        ({"program": []}, "'module:function'"),
        ({"models": []}, "different names"),
        ({"models": ["a", "a"]}, "different names"),
        ({"tasks": []}, "has no task"),
        ({"tasks": "no_such_module:task"}, "no_such_module"),
        ({"tasks": "no_such_file.jsonl"}, "no_such_file"),
        ({"reward": "agent_program_toys:nothing"}, "nothing"),
        ({"crash_reward": float("nan")}, "crash_reward"),
        ({"max_turns": 0}, "max_turns"),
        ({"programme": "x"}, "programme"),
    ],
    ids=str,
)
def test_wrong_options(options, error):
    config = {"program": "agent_program_toys:three_turns", **options}
    with pytest.raises(ConfigError, match=error):
        make_env("agent-v0", config).reset(seed=0)


def test_tasks(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}\n', encoding="utf-8")

    def task(number=None, split="train", **options):
        program = {"program": "agent_program_toys:one_turn"}
        env = make_env("agent-v0", {**program, **options})
        given = {} if number is None else {"task_number": number}
        env.reset(seed=7, options={"split": split, **given})
        env.close()
        return env.task

    assert task() == {"seed": 7, "split": "train"}
    assert [task(n, tasks=str(path))["n"] for n in (0, 1, 2)] == [1, 2, 1]
    assert task(tasks=["a", "b"]) in ("a", "b")
    assert task(1, "test", tasks=["a"], test_tasks=["x", "y"]) == "y"
    assert task(1, "test", tasks=["a"], test_tasks=["a"]) == "a"
    for given in (["a"], str(tmp_path / "tasks.jsonl")):
        with pytest.raises(ConfigError, match="Set test_tasks in env_config"):
            task(1, "test", tasks=given)


def test_a_run_that_evaluates_needs_held_out_tasks_before_it_starts():
    program = {"program": "agent_program_toys:one_turn", "tasks": ["a"]}
    config = run_of("one_turn", policies=None).config
    config = config.copy(copy_frozen=False).environment(env_config=program)
    preflight(config, num_resets=2)
    config.evaluation(evaluation_interval=1)
    with pytest.raises(ConfigError, match="Set test_tasks in env_config"):
        preflight(config, num_resets=2)


@pytest.mark.slow
def test_remote_env_runners_run_programs(ray_session):
    pytest.importorskip("openai")
    # A program of the package: Ray's workers cannot import modules of the tests.
    examples = "rllib_llm.envs.agent_programs.examples"
    options = {
        "program": f"{examples}.with_openai:program",
        "tasks": f"{examples}.delivery:task",
        "reward": f"{examples}.delivery:reward",
        "models": ["planner", "worker"],
    }
    config = run_of("-", policies=None, env_config=options).config.copy(
        copy_frozen=False
    )
    config.env_runners(num_env_runners=1)
    algo = config.build_algo()
    result = algo.train()
    algo.stop()
    assert result["env_runners"]["env"]["requests"] == 2.0
