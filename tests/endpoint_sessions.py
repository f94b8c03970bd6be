"""An endpoint session whose replies a function makes, without a model."""

from __future__ import annotations

import contextlib
import threading

import numpy as np

from rllib_llm.data.model_calls import ModelReply
from rllib_llm.data.types import FinishReason
from rllib_llm.envs.agent_programs.conversations import Conversations
from rllib_llm.envs.agent_programs.endpoint import Endpoint
from rllib_llm.envs.agent_programs.programs import ProgramEndpoint
from rllib_llm.envs.agent_programs.session import Interrupted, Session
from rllib_llm.openai_api.requests import Sampling
from rllib_llm.openai_api.responses import choice_of


def reply_of(text, finish=FinishReason.STOP):
    """Return a reply with one token per character."""
    ids = np.array([ord(c) for c in text], np.int32)
    logps = -np.arange(1, len(ids) + 1, dtype=np.float32) / 8
    return ModelReply(text, text, finish, 10, ids, logps, tuple(text))


class Served:
    """A session, and what it received.

    Attributes:
        requests: ModelRequests in the order in which they were answered.
        gate: Replies wait until it is set.
    """

    def __init__(self, answer=None, models=("alice", "bob"), sampling=None):
        self._answer = answer or (lambda call: f"reply to {last_text(call)}")
        self.requests, self.refused = [], []
        self.gate = threading.Event()
        self.gate.set()
        sampling = sampling or Sampling(1.0, 1.0)
        self.session = Session(dict.fromkeys(models, sampling))
        url = Endpoint.of_process().open(self.session)
        self.endpoint = ProgramEndpoint(url, self.session.key, tuple(models))
        self._conversations = {name: Conversations() for name in models}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while True:
            try:
                call = self.session.next_event(block=True)
            except Interrupted:
                return
            self.gate.wait()
            if not self.session.take(call):
                self.refused.append(call)
                continue
            store = self._conversations[call.parsed.model]
            conversation, request = store.place(call.parsed, call.sample)
            self.requests.append(request)
            reply = self._answer(call.parsed)
            if isinstance(reply, str):
                reply = reply_of(reply)
            choice = choice_of(call.parsed, reply)
            store.complete(conversation, call.parsed, reply, choice.message)
            call.set(choice)

    def close(self, reason="the program has returned"):
        Endpoint.of_process().close(self.session, reason)
        self.session.interrupt()
        self.gate.set()
        self._thread.join(10)


def last_text(call):
    if call.prompt is not None:
        return str(call.prompt)
    return call.messages[-1].content


@contextlib.contextmanager
def served(*args, **kwargs):
    """Yield a Served, closed at the end."""
    one = Served(*args, **kwargs)
    try:
        yield one
    finally:
        one.close()
