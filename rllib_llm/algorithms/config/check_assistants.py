"""Checks of ``rollouts(assistants=...)``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_llm.algorithms.driver.proposals import proposal_questions
from rllib_llm.assistants.answers import value_of
from rllib_llm.assistants.comparisons import questions_about_pair
from rllib_llm.assistants.local_sources import api_model, script_answers
from rllib_llm.assistants.questions import Question, questions_about
from rllib_llm.assistants.settings import Assistant, read_assistants
from rllib_llm.assistants.text_questions import text_questions
from rllib_llm.components.registry import bind
from rllib_llm.curricula.proposed import Proposed, read_options
from rllib_llm.data.turn_table import Trajectory, example_table
from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.modules.architectures import check_folder
from rllib_llm.modules.gguf_models import check_gguf, is_gguf
from rllib_llm.modules.loading import check_model_path, require_weights
from rllib_llm.prompt_texts.asked import Asked

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig

ASKED = "asked"  # the reward, and the filter
PROPOSED = "proposed"  # the curriculum


def assistants_read(config: LLMConfig) -> dict[str | None, set[str]]:
    """Return the assistants that components read, by the environment's name."""
    judge = getattr(config, "step_judge", None)  # of Pref
    return {
        environment: {
            *_names_read((specs.rewards, specs.reward_transforms, specs.filters)),
            *_names_read([config.save_where]),
            *([] if judge is None else [judge]),
        }
        for environment, specs in config.component_specs().items()
    }


def asked_about_candidates(config: LLMConfig) -> set[str]:
    """Return the assistants that score the replies at a turn."""
    return set(_names_read(config.candidate_scores))


def assistants_asked_for_tasks(config: LLMConfig) -> set[str]:
    """Return the assistants that curricula ask for tasks."""
    curricula = [specs.curriculum for specs in config.component_specs().values()]
    return {
        curriculum["of"]
        for curriculum in curricula
        if isinstance(curriculum, Mapping)
        and curriculum.get("name") == PROPOSED
        and isinstance(curriculum.get("of"), str)
    }


def validate_assistants(config: LLMConfig) -> None:
    """Check the assistants, and that each is read and can be asked.

    Raises:
        ConfigError: With the assistant, the value, the rule and the remedy.
    """
    assistants = read_assistants(config.assistants)
    of_answers = {name for read in assistants_read(config).values() for name in read}
    of_answers |= asked_about_candidates(config)
    of_tasks, of_texts = assistants_asked_for_tasks(config), writers_read(config)
    for names, reader in (
        (of_answers, "A component 'asked', or step_judge,"),
        (of_tasks, f"The curriculum {PROPOSED!r}"),
        (of_texts, "rollouts.prompt_text"),
    ):
        for name in sorted(names - set(assistants)):
            raise ConfigError(
                f"{reader} reads the answers of {name!r}, which is not in "
                f"rollouts.assistants. {did_you_mean(name, assistants)}"
            )
    for name, assistant in assistants.items():
        _check_reader(assistant, name in of_answers, name in of_tasks, name in of_texts)
        check_source(config, assistant)
        _try_question(assistant)
    if assistants and getattr(config, "needs_greedy", False):
        raise ConfigError(
            "rollouts.assistants: greedy rollouts are not asked about. Use another "
            "advantage_baseline."
        )


def writers_read(config: LLMConfig) -> set[str]:
    """Return the assistants that write texts for ``rollouts.prompt_text``."""
    texts = [specs.prompt_text for specs in config.component_specs().values()]
    given = [bind("prompt_text", text).call.of for text in texts if text is not None]
    return {name for name in given if name is not None}


def _check_reader(
    assistant: Assistant, is_answer: bool, is_task: bool, is_text: bool
) -> None:
    """Check that the kind of component reads an assistant that it is made for."""
    where = f"rollouts.assistants.{assistant.name}"
    if is_answer and is_text:
        raise ConfigError(
            f"{where} is read both by a component 'asked', as a number, and by "
            "rollouts.prompt_text, as a text. Use two assistants."
        )
    if assistant.writes_text and not is_text:
        raise ConfigError(
            f"{where} writes texts (parse.text) that nothing reads. Set rollouts."
            f"prompt_text, e.g. {{name: memory, of: {assistant.name}}}, or give parse "
            "words or a number for a component 'asked'."
        )
    if not (is_answer or is_task or (is_text and assistant.writes_text)):
        reward = f"{{name: asked, of: {assistant.name}}}"
        raise ConfigError(
            f"{where} is never asked. Add {reward} to rollouts.rewards, rollouts."
            "filters, save_where or candidate_scores, set Pref's step_judge to it, set "
            f"rollouts.curriculum={{name: {PROPOSED}, of: {assistant.name}}} and "
            "per='task', or leave it out; for rollouts.prompt_text set parse.text."
        )
    if is_task != (assistant.per == "task") or (is_task and is_answer):
        raise ConfigError(
            f"{where}.per={assistant.per!r}: the curriculum {PROPOSED!r} asks for "
            "tasks, which is per='task', and components 'asked' read answers about "
            "trajectories, turns or pairs. Set per, or define another assistant."
        )


def asks_runners(config: LLMConfig) -> bool:
    """Return whether a model on the EnvRunners answers."""
    return any(
        assistant.is_on_runners
        for assistant in read_assistants(config.assistants).values()
    )


def check_source(config: LLMConfig, assistant: Assistant) -> None:
    """Check that an assistant can answer in a run.

    Raises:
        ConfigError: With the value, the rule and the remedy.
    """
    where = f"rollouts.assistants.{assistant.name}"
    if assistant.per == "pair" and config.group_size < 2:
        raise ConfigError(
            f"{where}.per='pair' compares rollouts of a task, but group_size="
            f"{config.group_size}. Use group_size >= 2."
        )
    is_model = assistant.script is None
    if assistant.per == "task" and is_model and not assistant.temperature:
        raise ConfigError(
            f"{where}: proposals are all the same at temperature 0. Set temperature, "
            "e.g. 1.0."
        )
    if assistant.api is not None:
        api_model(assistant)
    if assistant.policy is not None and assistant.policy not in config.llm_module_ids:
        raise ConfigError(
            f"{where}.policy={assistant.policy!r} is not a policy with a language "
            f"model. {did_you_mean(assistant.policy, config.llm_module_ids)}"
        )
    is_frozen = assistant.model is not None or assistant.weights == "initial"
    if is_frozen and config.generation_engine != "torch":
        raise ConfigError(
            f"{where}: engine={config.generation_engine!r} holds the weights of the "
            "policy alone. Use engine='torch', or serve the other model and set api."
        )
    if assistant.policy is not None:
        policy_config = config.get_config_for_module(assistant.policy)
        if policy_config.action_head != "generate" and not is_frozen:
            raise ConfigError(
                f"{where}.policy={assistant.policy!r} chooses among actions "
                f"(head={policy_config.action_head!r}) and writes no text. Use "
                "head='generate', or another source."
            )
    if assistant.model is not None:
        _check_model(assistant.model)


def _check_model(model: str) -> None:
    check_model_path(model)
    require_weights(model)
    if is_gguf(model):
        check_gguf(model)
    elif Path(model).expanduser().is_dir():
        check_folder(model, None)


def _try_question(assistant: Assistant) -> None:
    """Ask about example turns; only a script is answered, at once."""
    if assistant.per == "task":
        _try_proposal(assistant)
        return
    trajectories = example_table().trajectories
    try:
        questions = _example_questions(assistant, trajectories)
    except (ValueError, TypeError) as error:  # a format such as {turn:x}
        raise ConfigError(
            f"rollouts.assistants.{assistant.name}.template: {error}. Correct the "
            "placeholders."
        ) from error
    if assistant.script is None:
        return
    answers = script_answers(assistant, questions)
    if assistant.writes_text:
        return  # about an example a script may have nothing to write
    if all(value_of(answer.text, assistant.parse) is None for answer in answers):
        raise ConfigError(
            f"rollouts.assistants.{assistant.name}: the script answers "
            f"{answers[0].text!r} about an example, and parse reads none of its "
            "answers. Correct one of the two."
        )


def _example_questions(
    assistant: Assistant, trajectories: list[Trajectory]
) -> list[Question]:
    if assistant.writes_text:
        return text_questions(assistant, [Asked(tuple(trajectories[:2]), ("So.",))])
    if assistant.per == "pair":
        return questions_about_pair(assistant, *trajectories[:2])
    return [q for t in trajectories for q in questions_about(assistant, t)]


def _try_proposal(assistant: Assistant) -> None:
    """Ask a script for tasks, at once."""
    if assistant.script is None:
        return
    examples = Proposed(of=assistant.name, proposals=8)
    questions = proposal_questions(assistant, examples, (0,))
    answers = script_answers(assistant, questions)
    if all(read_options(answer.text) is None for answer in answers):
        raise ConfigError(
            f"rollouts.assistants.{assistant.name}: the script proposes "
            f"{answers[0].text!r}, which is no JSON object of options. Correct it."
        )


def _names_read(specs: Any) -> Iterator[str]:
    """Yield the values of ``of`` of components named ``asked``, also inside others."""
    if isinstance(specs, Mapping):
        if specs.get("name") == ASKED and isinstance(specs.get("of"), str):
            yield specs["of"]
        for each in specs.values():
            yield from _names_read(each)
    elif isinstance(specs, list | tuple):
        for each in specs:
            yield from _names_read(each)
