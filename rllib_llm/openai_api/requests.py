"""Parsing of request bodies in the form of OpenAI's API."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from rllib_llm.data.model_calls import ChatMessage, ToolCall
from rllib_llm.openai_api.request_fields import Fields, RequestError, wrong

MOST_SAMPLES = 64
_MOST_STOPS = 16
_LABELS = (  # describe the caller and do not concern the reply
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
)
_ROLES = ("system", "developer", "user", "assistant", "tool")
_ON_POLICY = (
    "the reply is trained under the distribution of the training run "
    "(generation.{name}), so the program cannot change it."
)
_NOT_TRAINABLE = "the Learner could not compute its distribution."
_NOT_SAMPLED_SO = "the engine does not sample in this way."
_MOST_TEMPERATURE = 100.0


@dataclasses.dataclass(frozen=True)
class ParsedCall:
    """A request of a program, checked.

    Attributes:
        model: Name of the policy.
        messages: The conversation; empty for ``/v1/completions``.
        prompt: Text or token ids to complete, for ``/v1/completions``.
        tools: JSON schemas of the tools; None without tools.
        samples: Number of replies.
        max_tokens: Maximum tokens of each; None: the policy's limit.
        stop: Strings that end a reply.
        seed: Seed of the replies; None: that of the turn.
        stream: Whether to answer with server-sent events.
        include_usage: Whether a stream ends with the numbers of tokens.
        logprobs: Whether to return log-probabilities.
        token_ids: Whether to return token ids.
        temperature: Sampling temperature, 0 for greedy; None: the policy's.
        top_p: Probability mass to sample from; None: the policy's.
    """

    model: str
    messages: tuple[ChatMessage, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    samples: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    token_ids: bool = False
    temperature: float | None = None
    top_p: float | None = None

    @property
    def is_chat(self) -> bool:
        """True for a request for a message, False for one that continues a text."""
        return self.prompt is None


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Sampling settings of a policy."""

    temperature: float = 1.0
    top_p: float = 1.0


@dataclasses.dataclass(frozen=True)
class ServedModels:
    """The policies that a server offers as models.

    Attributes:
        sampling: Settings of each policy by its name.
        trains: Whether replies are trained: requests may then repeat the settings of
            the training run, but not change them.
        page: Page of the documentation that lists the fields.
    """

    sampling: Mapping[str, Sampling]
    trains: bool = True
    page: str = "docs/agent_programs.md"

    def require(self, name: object) -> None:
        """Refuse a name that is no model.

        Raises:
            RequestError: With status 404 and the names of the models.
        """
        if name in self.sampling:
            return
        rest = "Add it to env_config's models." if self.trains else "Ask one of these."
        owner = "program" if self.trains else "run"
        raise RequestError(
            f"model={str(name)[:80]!r} is no policy of this {owner}; its models are "
            f"{', '.join(self.sampling)}. {rest}",
            status=404,
            code="model_not_found",
            param="model",
        )


def parse_chat(body: Any, models: ServedModels) -> ParsedCall:
    """Return a body of ``/v1/chat/completions``, checked.

    Args:
        body: The parsed JSON.
        models: The models; other names are refused.

    Raises:
        RequestError: With the field, the rule and the remedy.
    """
    fields = Fields(body)
    model = _model(fields, models)
    messages = _messages(fields.take("messages"))
    tools = _tools(fields)
    logprobs = fields.flag("logprobs")
    fields.must_equal("top_logprobs", 0, "the engine records sampled tokens only.")
    limits = [
        fields.integer(name, 1, 2**31 - 1)
        for name in ("max_completion_tokens", "max_tokens")
    ]
    fields.must_be_one_of(
        "response_format",
        ({"type": "text"},),
        "constrained decoding would change the distribution that is trained."
        if models.trains
        else _NOT_SAMPLED_SO,
    )
    fields.must_be_one_of("modalities", (["text"],), "policies write text.")
    call = ParsedCall(
        model=model,
        messages=messages,
        tools=tools,
        max_tokens=min((m for m in limits if m is not None), default=None),
        logprobs=logprobs,
        **_common(fields, models, model),
    )
    fields.refuse_rest(models.page)
    return call


def parse_completion(body: Any, models: ServedModels) -> ParsedCall:
    """Return a body of ``/v1/completions``, checked; see :func:`parse_chat`."""
    fields = Fields(body)
    model = _model(fields, models)
    prompt = _prompt(fields.take("prompt"))
    logprobs = fields.take("logprobs")
    if logprobs not in (None, 0) or isinstance(logprobs, bool):
        raise wrong(
            "logprobs",
            logprobs,
            "is refused: the engine records sampled tokens only. Send 0, which returns "
            "their log-probabilities.",
        )
    fields.must_be_one_of("echo", (False,), "the reply holds sampled tokens only.")
    fields.must_equal("best_of", 1, "every sampled reply is returned.")
    fields.must_be_one_of("suffix", ("",), "policies do not insert text.")
    call = ParsedCall(
        model=model,
        prompt=prompt,
        max_tokens=fields.integer("max_tokens", 1, 2**31 - 1),
        logprobs=logprobs is not None,
        **_common(fields, models, model),
    )
    fields.refuse_rest(models.page)
    return call


def _model(fields: Fields, models: ServedModels) -> str:
    model = fields.text("model", required=True)
    models.require(model)
    assert model is not None
    return model


def _common(fields: Fields, models: ServedModels, model: str) -> dict[str, Any]:
    sampling: dict[str, float | None] = {}
    if models.trains:
        for name, value in dataclasses.asdict(models.sampling[model]).items():
            fields.must_equal(name, value, _ON_POLICY.format(name=name))
    else:
        sampling = {
            "temperature": fields.number("temperature", 0.0, _MOST_TEMPERATURE),
            "top_p": fields.number("top_p", 1e-6, 1.0),
        }
    why = _NOT_TRAINABLE if models.trains else _NOT_SAMPLED_SO
    for name in ("frequency_penalty", "presence_penalty"):
        fields.must_equal(name, 0, why)
    fields.must_be_one_of("logit_bias", ({},), why)
    fields.must_be_one_of("service_tier", ("auto", "default"), "there is one tier.")
    kept = "replies are stored as episodes only." if models.trains else "nothing is."
    fields.must_be_one_of("store", (False,), kept)
    for name in _LABELS:
        fields.take(name)
    stream = fields.flag("stream")
    return {
        **sampling,
        "samples": fields.integer("n", 1, MOST_SAMPLES) or 1,
        "stop": _stop(fields.take("stop")),
        "seed": fields.integer("seed", -(2**63), 2**63 - 1),
        "stream": stream,
        "include_usage": _include_usage(fields.take("stream_options"), stream),
        "token_ids": fields.flag("return_token_ids"),
    }


def _include_usage(value: Any, stream: bool) -> bool:
    if value is None:
        return False
    if not stream or not isinstance(value, dict):
        raise wrong("stream_options", value, "must be an object, with stream=true.")
    options = Fields(value)
    include = options.flag("include_usage")
    options.must_be_one_of(
        "include_obfuscation", (False, True), "chunks are not padded."
    )
    options.refuse_rest("OpenAI's reference")
    return include


def _stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if stops is None:
        return ()
    is_list = isinstance(stops, list) and len(stops) <= _MOST_STOPS
    if not is_list or not all(isinstance(s, str) and s for s in stops):
        raise wrong(
            "stop", value, f"must be a text or a list of at most {_MOST_STOPS} texts."
        )
    return tuple(stops)


def _prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str) and value:
        return value
    is_int = isinstance(value, list) and all(type(i) is int for i in value)
    if is_int and value and all(0 <= i < 2**31 for i in value):
        return tuple(value)
    raise wrong(
        "prompt",
        value,
        "must be one text, or one list of token ids. Send several prompts one by one.",
    )


def _tools(fields: Fields) -> tuple[dict[str, Any], ...] | None:
    given = fields.take("tools")
    choice = fields.take("tool_choice")
    if choice not in (None, "auto", "none"):
        raise wrong(
            "tool_choice",
            choice,
            'is refused: calls are sampled, not constrained. Send "auto" or "none".',
        )
    fields.must_be_one_of(
        "parallel_tool_calls", (True,), "calls are sampled, not constrained."
    )
    if given is None or given == []:
        return None
    if not isinstance(given, list):
        raise wrong("tools", given, "must be a list.")
    tools = tuple(_tool(i, tool) for i, tool in enumerate(given))
    return None if choice == "none" else tools


def _tool(index: int, tool: Any) -> dict[str, Any]:
    name = f"tools[{index}]"
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type") != "function":
        raise wrong(name, tool, 'must be {"type": "function", "function": {...}}.')
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise wrong(f"{name}.function.name", function.get("name"), "must be a text.")
    if function.get("strict"):
        raise wrong(
            f"{name}.function.strict",
            True,
            "is refused: calls are sampled and may be malformed. Send false (in the "
            "Agents SDK: function_tool(strict_mode=False)).",
        )
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    properties = parameters.get("properties", {}) if isinstance(parameters, dict) else 0
    if not isinstance(properties, dict) or not all(
        isinstance(p, dict) for p in properties.values()
    ):
        raise wrong(f"{name}.function.parameters", parameters, "must be a JSON schema.")
    described = function.get("description") or ""
    if not isinstance(described, str):
        raise wrong(f"{name}.function.description", described, "must be a text.")
    kept = {"name": function["name"], "description": described}
    return {"type": "function", "function": {**kept, "parameters": parameters}}


# Messages -----------------------------------------------------------------------------


def _messages(given: Any) -> tuple[ChatMessage, ...]:
    if not isinstance(given, list) or not given:
        raise wrong("messages", given, "must be a list of at least one message.")
    names: dict[str, str] = {}  # of the tools called so far, by the call's id
    messages = tuple(_message(i, m, names) for i, m in enumerate(given))
    if messages[-1].role == "assistant":
        raise RequestError(
            "The last message is the assistant's; the policy writes whole messages. "
            "End with a message of the user, or send the text to /v1/completions.",
            param="messages",
        )
    return messages


def _message(index: int, given: Any, names: dict[str, str]) -> ChatMessage:
    where = f"messages[{index}]"
    if not isinstance(given, dict):
        raise wrong(where, given, 'must be {"role": ..., "content": ...}.')
    role = given.get("role")
    if role not in _ROLES:
        raise wrong(f"{where}.role", role, f"must be one of {', '.join(_ROLES)}.")
    if given.get("function_call"):
        raise wrong(f"{where}.function_call", given["function_call"], "use tool_calls.")
    calls = _tool_calls(where, given.get("tool_calls"), role)
    content = _content(f"{where}.content", given.get("content"), bool(calls))
    names.update((call.call_id, call.name) for call in calls)
    if role != "tool":
        role = "system" if role == "developer" else role
        return ChatMessage(role, content, calls)
    call_id = given.get("tool_call_id")
    if not isinstance(call_id, str) or call_id not in names:
        raise wrong(
            f"{where}.tool_call_id",
            call_id,
            "must be the id of a tool call in an earlier message.",
        )
    return ChatMessage("tool", content, call_id=call_id, name=names[call_id])


def _content(where: str, given: Any, has_calls: bool) -> str:
    if given is None and has_calls:
        return ""
    if isinstance(given, list):
        parts = [_part(where, part) for part in given]
        return "".join(parts)
    if not isinstance(given, str):
        raise wrong(where, given, "must be a text, or a list of text parts.")
    return given


def _part(where: str, part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str) or part.get("type") not in ("text", "output_text"):
        raise wrong(
            where, part, 'has a part that is not {"type": "text", "text": ...}.'
        )
    return text


def _tool_calls(where: str, given: Any, role: str) -> tuple[ToolCall, ...]:
    if given is None or given == []:
        return ()
    if role != "assistant" or not isinstance(given, list):
        raise wrong(f"{where}.tool_calls", given, "must be a list, of the assistant.")
    return tuple(_tool_call(where, call) for call in given)


def _tool_call(where: str, call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    values: list[Any] = [None]
    if isinstance(function, dict):
        values = [call.get("id"), function.get("name"), function.get("arguments")]
    if not all(isinstance(value, str) for value in values):
        raise wrong(
            f"{where}.tool_calls",
            call,
            'must be {"id": ..., "type": "function", "function": {"name": ..., '
            '"arguments": a text}}.',
        )
    call_id, name, arguments = values
    return ToolCall(call_id, name, canonical_json(arguments))


def canonical_json(text: str) -> str:
    """Return a JSON text with sorted keys, so that equal values are equal texts."""
    try:
        return json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
