"""Settings of an assistant, and their checks."""

from __future__ import annotations

import dataclasses
import re
import string
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

from annotated_types import MinLen

from rllib_llm.components.registry import BoundComponent, Spec, bind
from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.schema import NonNegativeFloat, PositiveFloat, PositiveInt, require

# Placeholders of a template.
FIELDS = ("task", "transcript", "observation", "reply", "turn")
# Those that tell what only the environment knows.
PRIVILEGED_FIELDS = ("gold", "solved", "return")
# Those of a question about a pair.
PAIR_FIELDS = ("task", "first", "second")
PRIVILEGED_PAIR_FIELDS = ("gold",)
# Those of a question that is answered with a text.
TEXT_FIELDS = ("task", "episodes", "texts")
PRIVILEGED_TEXT_FIELDS = ("gold",)
# That of a question for a task.
TASK_FIELDS = ("tasks",)
SOURCES = ("policy", "model", "api", "script")
_OF_MODELS = ("temperature", "max_new_tokens")
_OF_VALUES = ("parse", "samples", "reduce", "unreadable", "opponents", "privileged")


class ApiGiven(TypedDict, total=False):
    """Address of an OpenAI-compatible API."""

    url: str
    model: str
    concurrency: PositiveInt
    timeout_s: PositiveFloat


class ParseGiven(TypedDict, total=False):
    """Reading of an answer: ``words``, ``number`` with its range, or ``text``."""

    words: Annotated[dict[str, float], MinLen(2)]
    number: str
    low: float
    high: float
    text: str


class AssistantGiven(TypedDict, total=False):
    """Settings of an assistant as a configuration has them."""

    policy: str
    weights: Literal["current", "initial"]
    model: str
    api: ApiGiven
    script: Spec
    template: str
    system: str
    per: Literal["trajectory", "turn", "pair", "task"]
    opponents: PositiveInt | None
    parse: ParseGiven
    samples: PositiveInt
    reduce: Literal["mean", "median"]
    unreadable: Literal["drop"] | float
    privileged: bool
    temperature: NonNegativeFloat
    max_new_tokens: PositiveInt


@dataclasses.dataclass(frozen=True)
class Parse:
    """Reading of an answer.

    Attributes:
        words: Value of each word that an answer may end with; empty: a number or text.
        number: Regular expression of the number, with one group; "": a text.
        text: Regular expression of the text, with one group.
        low: Number that gives the value 0.
        high: Number that gives the value 1.
    """

    words: Mapping[str, float] = dataclasses.field(default_factory=dict)
    number: str = ""
    low: float = 0.0
    high: float = 1.0
    text: str = ""


@dataclasses.dataclass(frozen=True)
class Assistant:
    """Settings of an assistant, checked.

    Attributes:
        name: Its name.
        parse: Reading of its answers.
        template: The question, with placeholders; a script needs none.
        policy: ModuleID of the policy that answers, or None.
        weights: "current": the policy's weights; "initial": those before training.
        model: Folder or hub id of a model that answers and is not trained, or None.
        api: Address of an API that answers, or None.
        script: Component of kind ``answer`` that answers, or None.
        system: System message of the question, or None.
        per: "trajectory": one question about each; "turn": one about each turn; "pair":
            two about each two rollouts of a task, in both orders; "task": it proposes
            a task, for a curriculum.
        opponents: Rollouts that each is compared with; None: all others.
        samples: Answers to each question.
        reduce: Value of several readable answers: their "mean" or "median".
        unreadable: Value of a question without a readable answer; None: its episode
            is dropped.
        privileged: Whether questions tell what only the environment knows.
        temperature: Sampling temperature of a model; 0 is greedy.
        max_new_tokens: Maximum tokens of an answer.
    """

    name: str
    parse: Parse
    template: str = ""
    policy: str | None = None
    weights: Literal["current", "initial"] = "current"
    model: str | None = None
    api: Mapping[str, Any] | None = None
    script: BoundComponent | None = None
    system: str | None = None
    per: Literal["trajectory", "turn", "pair", "task"] = "trajectory"
    opponents: int | None = None
    samples: int = 1
    reduce: Literal["mean", "median"] = "mean"
    unreadable: float | None = None
    privileged: bool = False
    temperature: float = 0.0
    max_new_tokens: int = 16

    @property
    def is_on_runners(self) -> bool:
        """True if a model on the EnvRunners answers."""
        return self.policy is not None or self.model is not None

    @property
    def writes_text(self) -> bool:
        """True if its answers are texts, which ``prompt_text`` reads."""
        return bool(self.parse.text)


def read_assistants(given: Mapping[str, Mapping[str, Any]]) -> dict[str, Assistant]:
    """Return the assistants of a configuration, by name.

    Raises:
        ConfigError: With the assistant, the value, the rule and the remedy.
    """
    return {name: read_assistant(name, settings) for name, settings in given.items()}


def read_assistant(name: str, given: Mapping[str, Any]) -> Assistant:
    """Return one assistant.

    Raises:
        ConfigError: With the value, the rule and the remedy.
    """
    where = f"rollouts.assistants.{name}"
    require(where, given, AssistantGiven)
    sources = [key for key in SOURCES if key in given]
    if len(sources) != 1:
        raise ConfigError(
            f"{where} has {', '.join(sources) or 'no source'}: one of "
            f"{', '.join(SOURCES)} must say who answers. Set exactly one of them."
        )
    values = dict(given)
    unreadable = values.pop("unreadable", "drop")
    assistant = Assistant(
        name=name,
        parse=_parse_of(where, given, values),
        unreadable=None if unreadable == "drop" else float(unreadable),
        **_with_script(values),
    )
    _check_source(where, assistant, given)
    _check_samples(where, assistant, given)
    _check_template(where, assistant)
    return assistant


def _parse_of(where: str, given: Mapping[str, Any], values: dict[str, Any]) -> Parse:
    """Take ``parse`` out of the values; proposals of tasks have none."""
    if given.get("per") != "task":
        return _parse(where, values.pop("parse", None))
    unused = [key for key in _OF_VALUES if key in given]
    if unused:
        raise ConfigError(
            f"{where}: {', '.join(unused)} would have no effect, because per='task' "
            "answers with a task and not with a value. Leave it out."
        )
    return Parse()


def _with_script(values: dict[str, Any]) -> dict[str, Any]:
    if "script" not in values:
        return values
    return {**values, "script": bind("answer", values["script"])}


def _parse(where: str, given: Mapping[str, Any] | None) -> Parse:
    keys = {"words", "number", "text"} & set(given or {})
    if given is None or len(keys) != 1:
        raise ConfigError(
            f"{where}.parse={given!r} must say how an answer is read. Set one of "
            "words, e.g. {words: {'yes': 1.0, 'no': 0.0}}, number, e.g. {number: "
            "'Score: ([0-9]+)', low: 0, high: 10}, or text, e.g. {text: 'Note: (.+)'}."
        )
    if "number" in given:
        return _number_parse(where, given)
    if "low" in given or "high" in given:
        raise ConfigError(
            f"{where}.parse: low and high have no effect beside {keys.pop()}. Leave "
            "them out."
        )
    if "text" in given:
        _check_one_group(f"{where}.parse.text", given["text"], "'Note: (.+)'")
        return Parse(text=given["text"])
    words = [word.strip().lower() for word in given["words"]]
    if "" in words or len(set(words)) < len(words):
        raise ConfigError(
            f"{where}.parse.words={given['words']!r}: they must be different, also "
            "without upper case, and not empty. Change them."
        )
    return Parse(words=dict(zip(words, given["words"].values(), strict=True)))


def _number_parse(where: str, given: Mapping[str, Any]) -> Parse:
    if "low" not in given or "high" not in given or not given["low"] < given["high"]:
        raise ConfigError(
            f"{where}.parse={dict(given)!r}: a number needs its range, low < high; "
            "others are unreadable. Set both, e.g. low: 0, high: 10."
        )
    number = given["number"]
    _check_one_group(f"{where}.parse.number", number, "'Score: ([0-9]+)'")
    return Parse(number=number, low=float(given["low"]), high=float(given["high"]))


def _check_one_group(where: str, pattern: str, example: str) -> None:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ConfigError(
            f"{where}={pattern!r} is not a regular expression: {error}. Correct it."
        ) from error
    if groups != 1:
        raise ConfigError(
            f"{where}={pattern!r} has {groups} groups; it must have one, around what "
            f"is read, e.g. {example}."
        )


def _check_source(where: str, assistant: Assistant, given: Mapping[str, Any]) -> None:
    if "weights" in given and assistant.policy is None:
        raise ConfigError(
            f"{where}.weights={assistant.weights!r} has no effect without policy. "
            "Leave it out."
        )
    if assistant.api is not None and not {"url", "model"} <= assistant.api.keys():
        raise ConfigError(
            f"{where}.api={dict(assistant.api)!r} needs url and model, e.g. {{url: "
            "'http://localhost:8000/v1', model: my-model}."
        )
    unused = [key for key in _OF_MODELS if key in given]
    if assistant.script is not None and unused:
        raise ConfigError(
            f"{where}: {', '.join(unused)} would have no effect, because a script "
            "samples no tokens. Leave it out."
        )


def _check_samples(where: str, assistant: Assistant, given: Mapping[str, Any]) -> None:
    if assistant.opponents is not None and assistant.per != "pair":
        raise ConfigError(
            f"{where}.opponents={assistant.opponents} has no effect with per="
            f"{assistant.per!r}. Leave it out, or set per to 'pair'."
        )
    if assistant.writes_text:
        unused = [k for k in ("per", "samples", "reduce", "unreadable") if k in given]
        if unused:
            raise ConfigError(
                f"{where}: {', '.join(unused)} would have no effect, because the "
                "assistant writes texts, about what its component chooses. Leave it "
                "out."
            )
    if assistant.samples == 1 and "reduce" in given:
        raise ConfigError(
            f"{where}.reduce={assistant.reduce!r} has no effect with one answer. Set "
            "samples to 2 or more, or leave reduce out."
        )
    if assistant.samples > 1 and not assistant.temperature and not assistant.script:
        raise ConfigError(
            f"{where}.samples={assistant.samples} answers are all the same at "
            "temperature 0. Set temperature, e.g. 1.0, or samples to 1."
        )


def _check_template(where: str, assistant: Assistant) -> None:
    open_fields, privileged = _fields_of(assistant)
    listed = ", ".join(f"{{{field}}}" for field in open_fields)
    if not assistant.template:
        if assistant.script is None:
            raise ConfigError(
                f"{where} has no template. Set it to the question, with placeholders: "
                f"{listed}."
            )
        return
    named = _placeholders(where, assistant.template)
    allowed = (*open_fields, *privileged)
    for field in named:
        if field not in allowed:
            raise ConfigError(
                f"{where}.template has the placeholder {{{field}}}. "
                f"{did_you_mean(field, allowed)}"
            )
        if field in privileged and not assistant.privileged:
            raise ConfigError(
                f"{where}.template has the placeholder {{{field}}}, which tells what "
                "only the environment knows. Set privileged to True, or leave it out."
            )
    # Questions for tasks differ by their seeds.
    if not named and assistant.per != "task":
        raise ConfigError(
            f"{where}.template has no placeholder, so that all questions are the same. "
            f"Add one: {listed}."
        )


def _fields_of(assistant: Assistant) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the placeholders for all, and those that need ``privileged``."""
    if assistant.per == "task":
        return TASK_FIELDS, ()
    if assistant.writes_text:
        return TEXT_FIELDS, PRIVILEGED_TEXT_FIELDS
    if assistant.per == "pair":
        return PAIR_FIELDS, PRIVILEGED_PAIR_FIELDS
    return FIELDS, PRIVILEGED_FIELDS


def _placeholders(where: str, template: str) -> list[str]:
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(
            f"{where}.template: {error}. Write a brace as two, '{{{{'."
        ) from error
    return [name for _, name, _, _ in parts if name is not None]
