"""Answers of scripts and of APIs, in the driver's process."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rllib_llm.assistants.answers import Answer
from rllib_llm.assistants.questions import Question
from rllib_llm.assistants.settings import Assistant
from rllib_llm.errors import ConfigError, RLlibLLMError
from rllib_llm.evaluation.api_models import ApiModel, ApiSettings

logger = logging.getLogger("rllib_llm")


def script_answers(assistant: Assistant, questions: Sequence[Question]) -> list[Answer]:
    """Return the answers of an assistant's script.

    Raises:
        ConfigError: If it does not return text.
        RLlibLLMError: If it raises an error.
    """
    assert assistant.script is not None
    name, answers = assistant.script.component.name, []
    for question in questions:
        try:
            text = assistant.script.call(question)
        except ConfigError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise RLlibLLMError(
                f"assistant {assistant.name!r}: the script {name!r} raised "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(text, str):
            raise ConfigError(
                f"assistant {assistant.name!r}: the script {name!r} returned {text!r}. "
                "It must return the answer as str."
            )
        answers.append(Answer(text))
    return answers


def api_model(assistant: Assistant) -> ApiModel:
    """Return the client of an assistant's API.

    Raises:
        ConfigError: If its address is not one of HTTP.
        MissingExtraError: Without the package ``openai``.
    """
    return ApiModel(
        ApiSettings(
            **dict(assistant.api or {}),
            temperature=assistant.temperature,
            max_new_tokens=assistant.max_new_tokens,
        )
    )


def api_answers(model: ApiModel, questions: Sequence[Question]) -> list[Answer]:
    """Return the answers of an API; a request that takes too long has no answer.

    Raises:
        ApiError: If the API cannot be used.
    """

    def ask(question: Question) -> Answer:
        try:
            reply = model.reply(question.messages)
        except TimeoutError as error:
            logger.warning("A question was not answered in time: %s", error)
            return Answer(None)
        return Answer(reply.text, reply.sampled_tokens, reply.prompt_tokens)

    with ThreadPoolExecutor(model.settings.concurrency) as threads:
        try:
            return list(threads.map(ask, questions))
        finally:
            # After an ApiError the other questions would fail, too.
            threads.shutdown(wait=True, cancel_futures=True)
