"""Every check of check_env fires on an environment that is broken in that way."""

import random
import re
from typing import ClassVar

import numpy as np
import pytest
from check_toys import MainThreadOnly

from rllib_llm.envs import TextEnv, TurnResult, check, check_env, check_sharing
from rllib_llm.errors import ConfigError


class Sound(TextEnv):
    """Shows a digit and expects it back; the base of all broken environments."""

    max_turns = 3

    def start(self, rng, upper: int = 9):
        self.rng = rng
        self.digit = int(rng.integers(upper + 1))
        return f"Say {self.digit}"

    def parse(self, completion):
        text = completion.strip()
        return int(text) if text in set("0123456789") else None

    def reply(self, action):
        right = action == self.digit
        return TurnResult("Yes" if right else "No", float(right), right, success=right)

    def expert_action(self, rng):
        return str(self.digit)

    def random_action(self, rng):
        return str(rng.integers(10))


class GlobalRandom(Sound):
    def reply(self, action):
        return TurnResult(f"Lucky number {random.random()}")


class GlobalNumpyRandom(Sound):
    def start(self, rng):
        np.random.seed(int(rng.integers(100)))
        return "Hello"

    def reply(self, action):
        return TurnResult(f"Lucky number {np.random.rand()}")


class SharedState(Sound):
    received: ClassVar[list[int]] = []

    def reply(self, action):
        self.received.append(action)
        return TurnResult(f"So far {len(self.received)}")


class LeftOver(Sound):
    """Keeps a counter over episodes of one instance."""

    episodes = 0

    def start(self, rng):
        self.episodes += 1
        return f"Episode {self.episodes}" if self.episodes > 2 else super().start(rng)


class RandomReward(Sound):
    def reply(self, action):
        return TurnResult("No", reward=random.random())


class NanReward(Sound):
    def reply(self, action):
        return TurnResult("No", reward=float("nan"))


class NanRewardInStep(Sound):
    def step(self, action):
        text, _, *rest = super().step(action)
        return text, float("inf"), *rest


class Raises(Sound):
    def reply(self, action):
        return TurnResult(str([1, 2][action]))


class RaisesInReset(Sound):
    def start(self, rng):
        return {}["missing"]


class Endless(Sound):
    def step(self, action):
        self.turn += 1
        return "Go on", 0.0, False, False, {"invalid_action": False, "success": None}


class VeryLong(Sound):
    max_turns = 10**9

    def reply(self, action):
        return TurnResult("Go on")


class NumberAsObservation(Sound):
    def step(self, action):
        _, *rest = super().step(action)
        return 7, *rest


class EmptyObservation(Sound):
    def step(self, action):
        _, *rest = super().step(action)
        return "", *rest


class FragileParser(Sound):
    def parse(self, completion):
        return int(completion)


class FragileOnLength(Sound):
    def parse(self, completion):
        if len(completion) > 1_000:
            raise RecursionError("too deep")
        return super().parse(completion)


class SwallowsOptions(Sound):
    def __init__(self, env_config=None):
        super().__init__()


class IgnoresMaxTurns(Sound):
    def __init__(self, env_config=None):
        super().__init__(env_config)
        self.max_turns = 3


class IgnoresInvalidAction(Sound):
    def __init__(self, env_config=None):
        super().__init__(env_config)
        self.invalid_action = "retry"


class RefusesInvalidAction(Sound):
    def __init__(self, env_config=None):
        if "invalid_action" in (env_config or {}):
            raise KeyError("invalid_action")
        super().__init__(env_config)


class NoTestSplit(Sound):
    def reset(self, *, seed=None, options=None):
        if options:
            raise ValueError("no options here")
        return super().reset(seed=seed)


class BadExpertFormat(Sound):
    def expert_action(self, rng):
        return f"I say {self.digit}"


class BadRandomFormat(Sound):
    def random_action(self, rng):
        return "whatever"


class FoolishExpert(Sound):
    def expert_action(self, rng):
        return str((self.digit + 1) % 10)


class ForgetsSuccess(Sound):
    def reply(self, action):
        return TurnResult("Thanks", 1.0, terminated=True)


class Trailing(Sound):
    def start(self, rng):
        super().start(rng)
        return "Say it\n"


class Accents(Sound):
    def start(self, rng):
        super().start(rng)
        return "Dis-le, s'il te pla\u00eet"


BROKEN = [
    (GlobalRandom, "np.random"),
    (GlobalNumpyRandom, "interleaved with the same actions"),
    (SharedState, "shared between instances"),
    (LeftOver, "between instances or episodes"),
    (RandomReward, "gave other rewards"),
    (NanReward, "nan.*must be finite"),
    (NanRewardInStep, "reward was inf"),
    (Raises, "IndexError"),
    (RaisesInReset, r"reset\(\) raised KeyError"),
    (Endless, "had not ended"),
    (VeryLong, "within 1000 turns"),
    (NumberAsObservation, "was 7; it must be a non-empty str"),
    (EmptyObservation, "was ''; it must be a non-empty str"),
    (FragileParser, "Models write any text"),
    (FragileOnLength, "RecursionError: too deep"),
    (SwallowsOptions, "'not_an_option' was accepted"),
    (IgnoresMaxTurns, "max_turns=1 let the episode go on"),
    (IgnoresInvalidAction, "invalid_action='end' let the episode go on"),
    (RefusesInvalidAction, "'invalid_action': 'end'} raised KeyError"),
    (NoTestSplit, "test split"),
    (BadExpertFormat, "'I say .', which parse"),
    (BadRandomFormat, "'whatever', which parse"),
    (FoolishExpert, "expert never succeeded in 16"),
    (ForgetsSuccess, "success=True"),
]


def test_sound_environment_passes():
    report = check_env(Sound)
    assert report.ok, str(report)
    assert report.measurements["expert_success"] == 1.0
    assert report.measurements["expert_turns_mean"] == 1.0
    assert 0 < report.measurements["random_success"] < 1.0
    assert report.measurements["observation_chars_max"] == len("Say 0")
    assert str(report).startswith("Sound: ok")


@pytest.mark.parametrize(
    ("env", "words"), BROKEN, ids=lambda x: getattr(x, "__name__", "")
)
def test_broken_environment_is_reported(env, words):
    report = check_env(env)
    assert not report.ok
    assert _matches(words, report.problems), str(report)
    assert "FAULTY" in str(report)


def _matches(words, problems):
    return any(re.search(words, problem) for problem in problems)


def test_every_check_fires_on_some_broken_environment(monkeypatch):
    fired = set()

    def recorded(one):
        def run(subject):
            problems = list(one(subject))
            fired.update([one.__name__] * bool(problems))
            return problems

        return run

    names = {one.__name__ for one in check.SINGLE_AGENT_CHECKS}
    monkeypatch.setattr(
        check, "SINGLE_AGENT_CHECKS", [recorded(c) for c in check.SINGLE_AGENT_CHECKS]
    )
    for env, _ in BROKEN:
        check_env(env)
    check_env(Trailing, tokenizer=Stripping(), max_context_tokens=1)
    check_env(MainThreadOnly)
    monkeypatch.setattr(check_sharing, "STEP_TIMEOUT_S", 0.0)
    check_env(Sound)
    assert fired == names


def test_options_of_the_caller_are_used():
    assert check_env(Sound, {"upper": 0}).measurements["observation_chars_max"] == 5
    with pytest.raises(ConfigError, match="Did you mean 'upper'"):
        check_env(Sound, {"uper": 0})
    with pytest.raises(ConfigError, match="seeds is empty"):
        check_env(Sound, seeds=[])


def test_policies_are_optional():
    class Bare(Sound):
        expert_action = TextEnv.expert_action
        random_action = TextEnv.random_action

    report = check_env(Bare)
    assert report.ok, str(report)
    assert "expert_success" not in report.measurements


class Bytes:
    """A tokenizer of UTF-8 bytes with a plain chat template."""

    chat_template = "yes"
    strips = False

    def encode(self, text, add_special_tokens=True):
        assert not add_special_tokens
        return list(text.encode())

    def decode(self, ids):
        return bytes(ids).decode()

    def apply_chat_template(self, messages, tokenize=True):
        assert not tokenize
        return "".join(
            f"<{m['role']}>{m['content'].strip() if self.strips else m['content']}"
            for m in messages
        )


class Stripping(Bytes):
    strips = True


class AsciiOnly(Bytes):
    def encode(self, text, add_special_tokens=True):
        return list(text.encode("ascii", "replace"))


def test_a_faithful_tokenizer_passes_and_is_measured():
    report = check_env(Sound, tokenizer=Bytes(), max_context_tokens=200)
    assert report.ok, str(report)
    turn = len("<assistant>0") + len("<user>No")
    longest = len("<user>Say 0") + 3 * turn + len("Yes") - len("No")
    assert report.measurements["conversation_tokens_max"] == longest


def test_the_system_prompt_counts():
    class Polite(Sound):
        system_prompt = "x" * 100

    plain = check_env(Sound, tokenizer=Bytes()).measurements
    polite = check_env(Polite, tokenizer=Bytes()).measurements
    name = "conversation_tokens_max"
    assert polite[name] == plain[name] + len("<system>") + 100


@pytest.mark.parametrize(
    ("env", "tokenizer", "words"),
    [
        (Sound, Bytes(), "max_context_tokens=60"),
        (Trailing, Stripping(), "chat template does not show"),
        (Accents, AsciiOnly(), "byte-level"),
    ],
)
def test_tokenizer_faults_are_found(env, tokenizer, words):
    limit = 60 if env is Sound else None
    report = check_env(env, tokenizer=tokenizer, max_context_tokens=limit)
    assert _matches(words, report.problems), str(report)
    assert check_env(env, tokenizer=Bytes()).ok
