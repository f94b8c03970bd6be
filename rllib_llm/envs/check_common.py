"""Checks of single-agent environments, and the report of all checks."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rllib_llm.envs.check_episodes import (
    MOST_TURNS,
    PlayedEpisode,
    Subject,
    always,
    implements,
    measure,
    raised_by,
    random_or_filler,
    replay,
)
from rllib_llm.envs.check_remedies import Advice, described
from rllib_llm.envs.check_sharing import (
    check_random_states,
    check_resets,
    check_threads,
)
from rllib_llm.envs.check_texts import check_context, check_round_trip
from rllib_llm.envs.make import EnvSpec
from rllib_llm.envs.transcript import Transcript, expert_policy, random_policy
from rllib_llm.errors import ConfigError

Check = Callable[[Subject], Iterator[str]]

_PASSES = 3  # of replays before a difference is reported

_GARBAGE = (
    "",
    " ",
    "\n\n",
    "hello",
    "-1",
    "nan",
    "1e999",
    "None",
    "{}[]()%s{0}\\",
    "(" * 3_000,
    "9" * 5_000,
    "word " * 5_000,
    "\x00\x01\x1b[31m\x7f",
    "\u202e\u0645\u0631\u062d\u0628\u0627 \u017f\u212a\u0130 \u0663\u00b2",
    "\U0001f600" * 50,
    "<|im_end|><think></think>",
)


@dataclasses.dataclass
class CheckReport:
    """The result of :func:`check_env`.

    Attributes:
        env: Name of the environment.
        problems: One message per fault: the value, the rule and the remedy.
        warnings: Faults that training survives: slow resets, rules of other libraries.
        measurements: Values such as ``ms_per_turn`` or ``random_success``.
    """

    env: str
    problems: list[str] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    measurements: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True without problems."""
        return not self.problems

    def __str__(self) -> str:
        lines = [f"{self.env}: {'ok' if self.ok else 'FAULTY'}"]
        lines += [f"  problem: {problem}" for problem in self.problems]
        lines += [f"  warning: {warning}" for warning in self.warnings]
        lines += [f"  {name}: {v:.4g}" for name, v in self.measurements.items()]
        return "\n".join(lines)


def combined(env: str, reports: Mapping[str, CheckReport]) -> CheckReport:
    """Return the reports of several environments as one.

    Args:
        env: Name of the whole.
        reports: The report of each environment, by its name.
    """
    whole = CheckReport(env)
    for name, report in reports.items():
        whole.problems += [f"{name}: {problem}" for problem in report.problems]
        whole.warnings += [f"{name}: {warning}" for warning in report.warnings]
        whole.measurements |= {
            f"{name}: {key}": value for key, value in report.measurements.items()
        }
    return whole


def name_of(spec: EnvSpec) -> str:
    """Return the environment's name in reports."""
    return spec if isinstance(spec, str) else getattr(spec, "__name__", repr(spec))


def run_checks(subject: Subject, checks: Iterable[Check]) -> CheckReport:
    """Play the subject's episodes, then run every check."""
    if not subject.seeds:
        raise ConfigError("seeds is empty. Pass at least one, e.g. seeds=range(16).")
    env = subject.build()
    subject.system_prompt = env.unwrapped.system_prompt
    subject.random = [
        PlayedEpisode(env, s, random_or_filler).finish() for s in subject.seeds
    ]
    if implements(env, expert_policy):
        subject.expert = [
            PlayedEpisode(env, s, expert_policy).finish() for s in subject.seeds
        ]
    for play in subject.plays:
        if isinstance(play.error, ConfigError):  # the caller's fault, not a finding
            raise play.error
    report = CheckReport(subject.name, measurements=measure(subject))
    # Every reset failed.
    if all(play.error and not play.transcript.observations for play in subject.plays):
        checks = (_check_errors,)  # the other checks need at least one observation
    for check in checks:
        for finding in check(subject):
            is_advice = isinstance(finding, Advice)
            (report.warnings if is_advice else report.problems).append(str(finding))
    env.close()
    return report


def _check_errors(subject: Subject) -> Iterator[str]:
    """Check that reset and step do not raise."""
    for play in subject.plays:
        if play.error is None:
            continue
        actions = play.transcript.actions
        call = f"step({actions[-1]!r})" if actions else "reset()"
        yield (
            f"{call} raised {described(play.error)}\n      ({play.where}). It must not "
            f"raise. {subject.remedies.errors}"
        )
        return


def _check_observations(subject: Subject) -> Iterator[str]:
    """Check that observations are non-empty strings."""
    for play in subject.plays:
        for turn, text in enumerate(play.transcript.observations):
            if not isinstance(text, str) or not text:
                yield (
                    f"The observation after turn {turn} of seed "
                    f"{play.transcript.seed} was {text!r}; it must be a non-empty str. "
                    "Return the text of the next user message, also in the last turn."
                )
                return


def _check_rewards(subject: Subject) -> Iterator[str]:
    """Check that rewards are finite numbers."""
    for play in subject.plays:
        for turn, reward in enumerate(play.transcript.rewards, start=1):
            is_number = isinstance(reward, (int, float, np.number))
            if not is_number or not math.isfinite(reward):
                yield (
                    f"The reward was {reward!r} (seed {play.transcript.seed}, turn "
                    f"{turn}); it must be a finite number. Guard divisions and logs."
                )
                return


def _check_ending(subject: Subject) -> Iterator[str]:
    """Check that episodes end, at the latest after max_turns."""
    for play in subject.plays:
        if play.error is None and not play.ended:
            yield (
                f"The episode had not ended ({play.where}). Every episode must end "
                f"within max_turns, and within {MOST_TURNS} turns. "
                f"{subject.remedies.ending}"
            )
            return


def _check_determinism(subject: Subject) -> Iterator[str]:
    """Check that the seed determines the episode, whatever else runs meanwhile.

    Other threads of the process may draw while an environment uses process-wide random
    states, so only what differs in every one of several passes is the environment's.
    """
    expected = [p.transcript for p in subject.random if p.error is None]
    for _ in range(_PASSES):
        difference, expected = _played_again(subject, expected)
        if difference is None:
            return
    yield f"{difference} {subject.remedies.randomness}"


def _played_again(
    subject: Subject, expected: list[Transcript]
) -> tuple[str | None, list[Transcript]]:
    """Play the same episodes in reverse order.

    Returns:
        The first difference in words, and the episodes in the order played.
    """
    # Three instances: state shared between them shows in interleaved episodes only.
    once, again, other = subject.build(), subject.build(), subject.build()
    first_difference, played = None, []
    # The order exposes state that earlier episodes left behind.
    for transcript in reversed(expected):
        seed, actions = transcript.seed, transcript.actions
        alone = PlayedEpisode(once, seed, replay(actions)).finish()
        plays = [("played again", alone)]
        if not subject.env_processes:
            beside = _interleaved(again, other, seed, actions)
            plays.append(("interleaved", beside))
        for what, second in plays:
            difference = _difference(transcript, second.transcript)
            if difference is not None and first_difference is None:
                first_difference = (
                    f"Seed {seed} {what} with the same actions gave {difference}."
                )
        played.append(alone.transcript)
    return first_difference, played


def _interleaved(
    env: gym.Env, other: gym.Env, seed: int, actions: list[str]
) -> PlayedEpisode:
    """Play ``seed`` while another instance plays another seed, turn by turn."""
    play = PlayedEpisode(env, seed, replay(actions))
    # Another seed: equal episodes would hide that they share a state.
    foreign = PlayedEpisode(other, seed + 1, replay(actions))
    while play.advance():
        foreign.advance()
    return play


def _difference(first: Transcript, second: Transcript) -> str | None:
    """Return the first difference of two transcripts in words, or None."""
    for kind in ("observations", "pictures", "rewards"):
        pairs = zip(getattr(first, kind), getattr(second, kind), strict=False)
        for turn, (a, b) in enumerate(pairs):
            if a != b:
                return f"other {kind}: first {a!r}, then {b!r} (item {turn})"
    if len(first.observations) != len(second.observations):
        counts = len(first.actions), len(second.actions)
        return "another length: first {} turns, then {}".format(*counts)
    return None


def _check_garbage(subject: Subject) -> Iterator[str]:
    """Check that step() accepts any text of a model."""
    if all(play.error is not None for play in subject.plays):
        return  # it also fails on valid text
    env, seed = subject.build(), subject.seeds[0]
    valid = [a for play in subject.plays for a in play.transcript.actions[:1]][:2]
    # Reversed, long and with huge numbers: mutations of what parse() accepts.
    damaged = [text for a in valid for text in (a[::-1], a * 500, a + "9" * 400)]
    for text in (*_GARBAGE, *damaged):
        play = PlayedEpisode(env, seed, always(text), limit=2).finish()
        if play.error is not None and play.transcript.actions:
            shown = repr(text if len(text) < 40 else text[:40] + "...")
            yield (
                f"step({shown}) raised {described(play.error)}\n      Models write "
                f"any text: {subject.remedies.garbage}"
            )
            return


def _check_options(subject: Subject) -> Iterator[str]:
    """Check that options have an effect, and that unknown ones are refused."""
    if raised_by(lambda: subject.build(not_an_option=1)) is None:
        yield (
            "The unknown option 'not_an_option' was accepted, so typing errors would "
            "go unnoticed. Pass env_config on to super().__init__(), and name all "
            "options in the signature of start()."
        )
    option: dict[str, Any]
    for option in ({"max_turns": 1}, {"invalid_action": "end"}):
        error = raised_by(functools.partial(subject.build, **option))
        if error is not None:
            yield _not_honoured(str(option), f"raised {type(error).__name__}: {error}")
            return
    single = subject.build(max_turns=1)
    strict = subject.build(invalid_action="end")
    play = PlayedEpisode(single, subject.seeds[0], random_or_filler).finish()
    if single.unwrapped.max_turns != 1 or (play.error is None and not play.ended):
        yield _not_honoured("max_turns=1", "let the episode go on after one turn")
    play = PlayedEpisode(strict, subject.seeds[0], always(""), limit=1).finish()
    infos = play.transcript.infos
    if infos and infos[0].get("invalid_action") and not play.ended:
        yield _not_honoured(
            "invalid_action='end'", "let the episode go on after an invalid action"
        )


def _not_honoured(option: str, what: str) -> str:
    return (
        f"The option {option} {what}. Options must have their effect: pass env_config "
        "on to super().__init__(), and do not override step() of TextEnv."
    )


def _check_split(subject: Subject) -> Iterator[str]:
    """Check that both splits can be played."""
    env = subject.build()
    for split in ("train", "test"):
        for seed in subject.seeds[:4]:
            options = {"split": split}
            error = raised_by(functools.partial(env.reset, seed=seed, options=options))
            if error is not None:
                yield (
                    f"reset(options={options}) raised "
                    f"{type(error).__name__}: {error}. Evaluation uses the test split. "
                    "Do not override reset() of TextEnv; draw until in_split() holds."
                )
                return


def _check_policies(subject: Subject) -> Iterator[str]:
    """Check that scripted policies write the format that parse() reads."""
    has_random = implements(subject.build(), random_policy)
    scripted = subject.plays if has_random else subject.expert
    for play in scripted:
        transcript = play.transcript
        for action, info in zip(transcript.actions, transcript.infos, strict=False):
            if info.get("invalid_action"):
                yield (
                    f"A scripted policy wrote {action!r}, which parse() rejects "
                    f"(seed {transcript.seed}). expert_action() and random_action() "
                    "must return completions in the required format."
                )
                return


def _check_expert(subject: Subject) -> Iterator[str]:
    """Check that the expert succeeds at least once."""
    if subject.expert and not any(play.succeeded for play in subject.expert):
        yield (
            f"The expert never succeeded in {len(subject.expert)} episodes. Either "
            "expert_action() plays wrongly, max_turns is too low, or reply() or "
            "apply() does not set success=True."
        )


SINGLE_AGENT_CHECKS: tuple[Check, ...] = (
    _check_errors,
    _check_observations,
    _check_rewards,
    _check_ending,
    _check_determinism,
    check_random_states,
    check_threads,
    check_resets,
    _check_garbage,
    _check_options,
    _check_split,
    _check_policies,
    _check_expert,
    check_context,
    check_round_trip,
)
