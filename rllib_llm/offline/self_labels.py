"""Tool calls that a policy labels itself: kept where they help it predict."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.connectors.learner.loss_mask import PatternMask
from rllib_llm.data.turn_table import MissingInfo, Trajectory
from rllib_llm.offline.conversation_files import StoredConversation
from rllib_llm.offline.corrections import Row, has_texts, messages_by_turn
from rllib_llm.offline.stored_episodes import conversation_episode
from rllib_llm.rewards.text_features import gold_answers
from rllib_llm.rewards.tools import calls

ANSWER = "{answer}"  # in the template of the known reply
_DECAY = 0.2
_NORM = 3.0  # of the weights 1, 0.8, 0.6, 0.4, 0.2

# Returns the log-probabilities of each episode's trained tokens.
TextLogps = Callable[[Sequence[Any]], Sequence[np.ndarray]]


@dataclasses.dataclass(frozen=True, slots=True)
class LabelledCall:
    """A conversation with and without a tool call before its known last reply.

    Attributes:
        plain: Messages without the call.
        answered: Messages with the call and its result.
        answer: The part of the last reply that is known.
        task: Number of the task.
    """

    plain: list[Row]
    answered: list[Row]
    answer: str
    task: int

    @property
    def is_called(self) -> bool:
        """True if there is a call."""
        return len(self.answered) > len(self.plain)

    @property
    def unanswered(self) -> list[Row]:
        """Return the messages with the call and an empty result."""
        call = len(self.plain) - 1
        return [
            {**message, "content": ""}
            if call < index < len(self.answered) - 1
            else message
            for index, message in enumerate(self.answered)
        ]


def weighted_nll(logps: np.ndarray) -> float:
    """Return the loss of an answer, in which early tokens weigh more.

    Token t weighs ``max(0, 1 - 0.2 t) / 3``, so the first five count (Toolformer,
    Schick et al. 2023, arXiv:2302.04761, sec. 2 and 4.1).

    Args:
        logps: Log-probabilities of the answer's tokens and of what follows. [T]

    Returns:
        The loss in nats, >= 0; fewer than five tokens have less of it.
    """
    weights = np.maximum(0.0, 1.0 - _DECAY * np.arange(len(logps))) / _NORM
    return float(-(weights * np.asarray(logps, np.float64)).sum())


def self_labels(
    trajectories: Iterable[Trajectory],
    template: str,
    margin: float,
    renderer: ChatRenderer,
    text_logps: TextLogps,
) -> tuple[list[Row], list[float]]:
    """Return a conversation for each task, with a tool call if it helps to predict.

    The reply that is known is the first of the environment's gold answers. The result
    of a call with which an episode begins lowers the loss L of that answer by
    ``min(L(no call), L(call without result)) - L(call with result)`` (Toolformer,
    Schick et al. 2023, arXiv:2302.04761, sec. 2). Of a task's calls the one with the
    largest such decrease is kept if that is at least the margin; otherwise the answer
    follows the task at once.
    Neither rewards nor the episodes' own answers are read.

    Args:
        trajectories: Trajectories of one agent, of whole groups.
        template: The known reply, with ``{answer}`` once.
        margin: Least decrease of the loss by a call that is kept, in nats.
        renderer: Renders conversations.
        text_logps: Returns the policy's log-probabilities of trained tokens.

    Returns:
        Rows of data files with ``messages``, and each call's decrease of the loss.

    Raises:
        MissingInfo: The environment names no gold answers.
    """
    by_task: dict[int, dict[str, LabelledCall]] = {}
    for trajectory in trajectories:
        if len(trajectory):
            labelled = _labelled(trajectory, template)
            # Equal conversations have the same likelihood.
            of_task = by_task.setdefault(labelled.task, {})
            of_task.setdefault(str(labelled.answered), labelled)
    conversations = [each for of_task in by_task.values() for each in of_task.values()]
    called = [each for each in conversations if each.is_called]
    decreases = _decreases(called, template, renderer, text_logps)
    best: dict[int, tuple[float, list[Row]]] = {}
    for each in conversations:
        best.setdefault(each.task, (margin, each.plain))
    for each, value in zip(called, decreases, strict=True):
        if value >= best[each.task][0]:
            best[each.task] = (value, each.answered)
    rows = [{"messages": messages} for _, messages in best.values()]
    return [row for row in rows if has_texts(row["messages"])], decreases


def _labelled(trajectory: Trajectory, template: str) -> LabelledCall:
    answers = gold_answers(trajectory)
    if not answers:
        raise MissingInfo(
            f"save_as='self_labels' needs a known answer, but the task of seed "
            f"{trajectory.task.seed} has gold_answers=[]. Leave such tasks out."
        )
    answer = answers[0]
    reply = {"role": "assistant", "content": template.replace(ANSWER, answer)}
    messages = [[dict(m) for m in turn] for turn in messages_by_turn(trajectory)]
    *prompt, call = messages[0]
    plain = answered = [*prompt, reply]
    (is_call, _), *_ = calls(trajectory)
    if is_call and len(messages) > 1:
        answered = [*prompt, call, *messages[1][:-1], reply]
    return LabelledCall(plain, answered, answer, trajectory.task.group_id)


def _decreases(
    called: Sequence[LabelledCall],
    template: str,
    renderer: ChatRenderer,
    text_logps: TextLogps,
) -> list[float]:
    """Return by how much each call lowers the weighted loss of the answer."""
    ways = [each for c in called for each in (c.plain, c.unanswered, c.answered)]
    logps = iter(text_logps([_scored(messages, renderer) for messages in ways]))
    decreases = []
    for call, *of_ways in zip(called, logps, logps, logps, strict=True):
        start = _start(call.answer, template, renderer)
        plain, unanswered, answered = (weighted_nll(w[start:]) for w in of_ways)
        decreases.append(min(plain, unanswered) - answered)
    return decreases


def _scored(messages: Sequence[Row], renderer: ChatRenderer) -> Any:
    """Return an episode of which the last reply is trained."""
    replies = sum(message["role"] == "assistant" for message in messages)
    trained = (*[False] * (replies - 1), True)
    return conversation_episode(StoredConversation(list(messages), trained), renderer)


def _start(answer: str, template: str, renderer: ChatRenderer) -> int:
    """Return the number of tokens in the known reply before the answer."""
    before = re.escape(template[: template.index(ANSWER)])
    where = PatternMask(rf"(?<={before}){re.escape(answer)}", renderer.tokenizer)
    ids = renderer.encode_reply(template.replace(ANSWER, answer))
    return int(np.argmax(where(np.asarray(ids))))
