"""Tasks that assistants propose, before an iteration's tasks are assigned."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rllib_llm.assistants.questions import Question, messages_of
from rllib_llm.curricula.proposed import read_options
from rllib_llm.errors import ConfigError
from rllib_llm.seeding import stable_seed

if TYPE_CHECKING:
    from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
    from rllib_llm.assistants.settings import Assistant


def proposing(components: DriverComponents) -> Iterator[tuple[str | None, Any]]:
    """Yield the curricula that ask for tasks, and the names of their environments."""
    for name, each in components.by_environment.items():
        call = getattr(each.curriculum, "call", None)
        if hasattr(call, "receive"):
            yield name, call


def propose_tasks(algo: Any) -> None:
    """Ask for options of tasks, and give the accepted ones to the curricula.

    Args:
        algo: An algorithm that asks assistants.
    """
    for environment, curriculum in proposing(algo._driver_components):
        assistant: Assistant = algo._assistants[curriculum.of]
        seed = (algo.config.seed or 0, environment, algo.iteration)
        questions = proposal_questions(assistant, curriculum, seed)
        answers = algo._answers(assistant, questions)
        read = [read_options(answer.text) for answer in answers]
        is_readable = [None if options is None else 1.0 for options in read]
        algo._log_answers(assistant, answers, is_readable)
        options = [each for each in read if each is not None]
        make_env = functools.partial(algo._driver_components.make_env, environment)
        accepted = accepted_options(options, make_env)
        curriculum.receive(accepted)
        key = ("proposals", assistant.name)
        num_refused = len(options) - len(accepted)
        algo.metrics.log_value((*key, "num_refused"), num_refused, reduce="sum")
        algo.metrics.log_value((*key, "num_kept"), curriculum.num_kept, window=1)


def proposal_questions(
    assistant: Assistant, curriculum: Any, seed: Sequence[Any]
) -> list[Question]:
    """Return the questions of an iteration; their answers differ by the seed alone."""
    messages = messages_of(assistant, curriculum.fields())
    return [
        Question(
            messages=messages,
            replies=(),
            turn=0,
            seed=stable_seed(*seed, assistant.name, number),
        )
        for number in range(curriculum.proposals)
    ]


def accepted_options(
    options: Sequence[dict[str, Any]], make_env: Callable[[], Any]
) -> list[dict[str, Any]]:
    """Return the options with which the environment starts an episode.

    It refuses by a ConfigError; any other error is its own fault and ends the run.
    """
    if not options:
        return []
    env, accepted = make_env(), []
    try:
        for each in options:
            try:
                env.reset(seed=0, options={**each, "split": "train"})
            except ConfigError:
                continue
            accepted.append(each)
    finally:
        env.close()
    return accepted
