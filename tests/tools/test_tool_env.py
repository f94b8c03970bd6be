"""ToolEnv: turns with calls and answers, and training on them."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
import tool_toys as toys

from rllib_llm.data.types import StopReason
from rllib_llm.envs import ToolEnv, TurnResult, check_env
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.errors import ConfigError
from rllib_llm.tools import FORMATS


class Sums(ToolEnv):
    """Add two numbers with a tool."""

    tools = [toys.add, toys.slow_square]
    max_turns = 4

    def start(self, rng, upper: int = 99) -> str:
        self.a, self.b = (int(n) for n in rng.integers(upper, size=2))
        return f"What is {self.a} + {self.b}?"

    def judge(self, answer: str) -> bool:
        return answer == str(self.a + self.b)

    def expert_action(self, rng) -> str:
        if not self.turn:
            return self.write_call("add", a=self.a, b=self.b)
        return f"<answer>{self.a + self.b}</answer>"

    def random_action(self, rng) -> str:
        return f"<answer>{rng.integers(200)}</answer>"


class Counting(ToolEnv):
    """Count to three; the tools' state belongs to the episode."""

    tools = [toys.Counter]

    def start(self, rng) -> str:
        return "Count to 3."

    def judge(self, answer: str) -> TurnResult:
        return TurnResult("And now?", reward=0.25)


def make(cls=Sums, **config):
    env = cls(config)
    env.reset(seed=0)
    return env


@pytest.mark.parametrize("tool_format", ["auto", *FORMATS])
def test_check_env_finds_nothing(tool_format):
    report = check_env(Sums, {"tool_format": tool_format})
    assert report.ok, str(report)
    assert report.measurements["expert_success"] == 1.0


def test_reset_describes_the_tools():
    prompt, info = Sums().reset(seed=0)
    names = [s["function"]["name"] for s in info["tools"]]
    assert names == ["add", "slow_square"]
    assert info["tool_format"] == "auto"
    prompt_of_tags, info = Sums({"tool_format": "tags"}).reset(seed=0)
    assert prompt_of_tags.endswith(prompt) and prompt_of_tags.startswith(
        "Tools:\n<add>"
    )
    assert "tools" not in info


def test_an_unknown_format_is_refused_before_anything_is_played():
    with pytest.raises(ConfigError, match="Unknown tool_format 'xml'"):
        Sums({"tool_format": "xml"})
    with pytest.raises(ConfigError, match="Set it in env_config"):
        Sums().reset(seed=0, options={"tool_format": "tags"})


def test_infos_hold_the_tool_metrics():
    env = make()
    text, reward, *_, info = env.step("<add>1, 2</add><slow_square>55</slow_square>")
    assert (text, reward) == ("3\n3025", 0.0)
    assert info["tool"] == "add"
    assert info["tool_error"] is False
    assert info["tool_cost"] == 0.5
    assert info["tool_results"] == [
        {"name": "add", "content": "3"},
        {"name": "slow_square", "content": "3025"},
    ]
    assert info["tool_calls"][0] == {
        "name": "add",
        "arguments": {"a": 1, "b": 2},
        "status": "ok",
    }
    assert info["success"] is None
    *_, info = env.step("<answer>0</answer>")
    assert (info["tool"], info["tool_error"], info["tool_cost"]) == (None, False, 0)
    assert "tool_results" not in info
    assert info["metrics"]["tool_calls"] == 2
    assert info["metrics"]["tool_cost"] == 0.5


def test_a_turn_of_malformed_calls_is_invalid_and_names_the_problem():
    env = make(invalid_action_reward=-0.1)
    text, reward, terminated, _, info = env.step("<add>x</add>")
    assert text == "Error: add: a: 'x' is not of type 'integer'"
    assert (reward, terminated, info["invalid_action"]) == (-0.1, False, True)
    assert (info["tool"], info["tool_error"]) == ("add", True)
    assert info["metrics"]["tool_malformed"] == 1
    text, *_, info = env.step("<add>x</add><add>1</add>")
    assert text.endswith("\n2") and not info["invalid_action"] and info["tool_error"]
    *_, info = env.step("<tool_call>{</tool_call>")
    assert info["tool"] == "malformed"
    *_, terminated, _, info = make(invalid_action="end").step("<add>x</add>")
    assert terminated and info["stop_reason"] == StopReason.PARSE_ERROR


def test_empty_text_is_not_an_answer():
    text, *_, info = make().step("???")
    assert text == Sums.format_hint
    assert info["invalid_action"]


def test_the_last_tagged_answer_counts_and_reasoning_does_not():
    env = make()
    right = env.a + env.b
    *_, info = env.step(f"<answer>1</answer> no, <answer> {right} </answer>!")
    assert info["success"] is True
    *_, info = make().step(str(right))
    assert info["success"] is True


def test_state_of_tools_belongs_to_the_episode():
    env = make(Counting)
    assert env.step("<up>2</up>")[0] == "2"
    assert env.step("<up>2</up>")[0] == "4"
    env.reset(seed=1)
    assert env.step("<up>2</up>")[0] == "2"


def test_judge_can_continue_the_episode():
    text, reward, terminated, *_ = make(Counting).step("three")
    assert (text, reward, terminated) == ("And now?", 0.25, False)


def test_snapshots_hold_the_state_of_tools():
    env = make(Counting, tool_format="tags")
    env.step("<up>2</up>")
    state = env.snapshot()
    assert env.step("<up>1</up>")[0] == "3"
    other = Counting({"tool_format": "tags"})
    other.restore(state)
    assert other.step("<up>1</up>")[0] == "3"
    assert other._results[0].text == "2"


def test_a_minimal_environment():
    import inspect

    assert len(inspect.getsource(Sums).splitlines()) <= 30


# Training -----------------------------------------------------------------------------


class Lost(Sums):
    """An environment whose tool is unavailable in every first attempt."""

    attempts: ClassVar[Counter] = Counter()

    def start(self, rng, upper: int = 99) -> str:
        prompt = super().start(rng, upper)
        Lost.attempts[prompt] += 1
        self.tools = [toys.Failing(times=99 if Lost.attempts[prompt] == 1 else 0)]
        return prompt

    def step(self, action):
        return super().step(self.write_call("fetch", url="x"))


def folder_with(template_name, folder):
    """Write a tiny model whose chat template presents tools."""
    from hf_folders import write_folder
    from tool_templates import TEMPLATES

    from rllib_llm.modules.loading import load_tokenizer

    family, template = TEMPLATES[template_name]
    write_folder(folder, family, max_position_embeddings=2000)
    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)


def make_runner(env, model, **config):
    from rllib_llm import LLMPPOConfig
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

    made = (
        LLMPPOConfig()
        .environment(env, env_config=config)
        .language_model(model=model)
        .env_runners(num_envs_per_env_runner=2)
        .generation(max_new_tokens=4, max_context_tokens=2000)
    )
    made.validate()
    made.resolved_model = model
    return LLMEnvRunner(config=made, worker_index=0)


class Scripted(Sums):
    """An environment that answers calls whatever the model writes."""

    def step(self, action):
        return super().step(self.write_call("add", a=1, b=self.turn))


@pytest.mark.parametrize("template", ["hermes", "llama3"])
def test_results_reach_the_model_in_the_templates_role(template, tmp_path):
    from rllib_llm.data.episode_data import episode_data

    runner = make_runner(Scripted, folder_with(template, tmp_path), max_turns=3)
    (episode,) = runner.sample(num_episodes=1)
    runner.stop()
    data = episode_data(episode)
    roles = ["user", "assistant", "tool", "assistant", "tool", "assistant", "tool"]
    assert [m["role"] for m in data.messages] == roles
    assert data.messages[2] == {"role": "tool", "name": "add", "content": "1"}
    turns = episode.get_extra_model_outputs("turn")
    assert all(turn.extends for turn in turns)
    # Sampled tokens stay unchanged between the appended ones.
    ids = [i for t in turns for i in [*t.prompt_ids.tolist(), *t.action_ids.tolist()]]
    assert data.ids[: len(ids)] == ids
    shown = runner.config.chat_renderer().tokenizer.decode(data.ids)
    assert shown.count("Square a number.") == 1


def test_an_unavailable_tool_repeats_the_episode_without_a_reward(tmp_path):
    from hf_folders import write_folder

    write_folder(tmp_path, "qwen2", max_position_embeddings=2000)
    runner = make_runner(Lost, str(tmp_path), max_turns=2)
    episodes = runner.sample(num_episodes=4)
    runner.stop()
    assert list(Lost.attempts.values()) == [2] * 4
    assert len(episodes) == 4
    for episode in episodes:  # without anything from the failed attempts
        assert [i["tool_error"] for i in episode.get_infos()[1:]] == [False] * 2


def test_demonstrations_are_rendered_like_sampled_turns():
    from hf_folders import make_tokenizer
    from tool_templates import TEMPLATES

    from rllib_llm.connectors.chat import ChatRenderer
    from rllib_llm.data.episode_data import episode_data
    from rllib_llm.offline.demonstrations import demonstrate, transcript_texts
    from rllib_llm.offline.sft_before_rl import demonstration_episode

    family, template = TEMPLATES["hermes"]
    tokenizer = make_tokenizer(family)
    tokenizer.chat_template = template
    env = Sums({"tool_format": "hermes"})
    demo = demonstrate(env, seed=1, mistake_rate=0.0)
    data = episode_data(demonstration_episode(demo, ChatRenderer(tokenizer)))
    assert [m["role"] for m in data.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    expected = tokenizer.apply_chat_template(
        data.messages, tools=env.tool_set.schemas, return_dict=False
    )
    assert data.ids == expected[: len(data.ids)]
    texts = transcript_texts(Sums, seed=0, count=2)
    assert any(text.startswith("Tools:\n<add>a, b</add>") for text in texts)


def test_expert_and_golden_shape():
    shown = str(play(Sums(), 0, expert_policy))
    assert "model> <add>84, 63</add>\nenv> 147\n" in shown
