"""The client of OpenEnv servers, against a server that sends the same messages."""

from __future__ import annotations

import json
import threading
import time
from http import HTTPStatus

import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.adapters.openenv_texts import (
    action_hint,
    observation_text,
    text_action,
)
from rllib_llm.errors import ConfigError, EnvContractError

pytest.importorskip("websockets")
from websockets.sync.server import serve

from rllib_llm.envs.adapters.openenv_client import OpenEnvUnavailable


def schema(**fields):
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {"metadata": {"type": "object"}, **fields},
        "required": list(fields),
    }


TEXT = schema(message={"type": "string"})
NUMBER = schema(guess={"type": "integer", "minimum": 0, "description": "your guess"})
MOVE = schema(move={"enum": ["left", "left up", "right"]})
CELL = schema(row={"type": "integer"}, column={"type": "integer"})
REFERENCE = {**schema(way={"$ref": "#/$defs/Way"}), "$defs": {"Way": {"enum": ["n"]}}}


@pytest.mark.parametrize(
    ("given", "text", "action"),
    [
        (TEXT, " hello ", {"message": "hello"}),
        (TEXT, "  ", None),
        (TEXT, 'so: {"message": "hi"}', {"message": "hi"}),
        (NUMBER, "not 3 but 17.", {"guess": 17}),
        (NUMBER, "2.5", None),
        (NUMBER, "-4", None),
        (NUMBER, "none", None),
        (MOVE, "right, no: Left Up", {"move": "left up"}),
        (MOVE, "lefty", None),
        (CELL, '{"row": 1, "column": 2}', {"row": 1, "column": 2}),
        (CELL, 'a {"row": 0} b {"row": 3, "column": 4} {', {"row": 3, "column": 4}),
        (CELL, '{"row": "x", "column": 2}', None),
        (CELL, "1 2", None),
        (CELL, "[" * 100_000 + "{" * 2000, None),
        (schema(on={"type": "boolean"}), "true or false", {"on": False}),
        (schema(x={"type": "number"}), "1.5", {"x": 1.5}),
        (REFERENCE, "go n", {"way": "n"}),
    ],
)
def test_texts_become_actions(given, text, action):
    assert text_action(text, given) == action


def test_hints_say_how_to_write_an_action():
    assert action_hint(TEXT) == ""
    assert action_hint(MOVE) == "Answer with one of: left, left up, right."
    assert action_hint(NUMBER) == "Answer with a number: your guess."
    assert action_hint(CELL) == (
        'Answer with a JSON object: {"row": "integer", "column": "integer"}.'
    )


def test_observations_become_texts():
    assert observation_text({"message": "Hi", "metadata": {"a": 1}, "n": 3}) == "Hi"
    assert observation_text({"a": "x", "b": "y", "c": None}) == '{"a": "x", "b": "y"}'
    assert observation_text({"a": "x", "board": [1]}) == '{"a": "x", "board": [1]}'


class Server:
    """Counts to two; the messages "fail", "die", "wait" and "odd" cause trouble."""

    def __init__(self, action=TEXT):
        self.schema, self.received = json.dumps({"action": action}), []
        self._server = serve(self._play, "127.0.0.1", 0, process_request=self._http)
        self.port = self._server.socket.getsockname()[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _http(self, connection, request):
        if request.path == "/schema":
            return connection.respond(HTTPStatus.OK, self.schema)
        return None

    def _play(self, connection):
        turn = 0
        for message in connection:
            content = json.loads(message)
            self.received.append(content)
            turn = 0 if content["type"] == "reset" else turn + 1
            word = content["data"].get("message")
            if word == "die":
                return
            if word == "wait":
                time.sleep(1)
            connection.send(self._answer(turn, word))

    def _answer(self, turn, word):
        errors = {"fail": "EXECUTION_ERROR", "refuse": "VALIDATION_ERROR"}
        if word in errors:
            data = {"message": "broken", "code": errors[word]}
            return json.dumps({"type": "error", "data": data})
        if word == "odd":
            return "hello"
        done = turn == 2
        seen = {"text": f"turn {turn}", "success": True if done else None}
        data = {"observation": seen, "reward": turn or None, "done": done}
        return json.dumps({"type": "observation", "data": data})

    def close(self):
        self._server.shutdown()


@pytest.fixture
def server():
    started = Server()
    yield started
    started.close()


@pytest.fixture
def env(server):
    made = make_env(
        "openenv-v0", {"url": f"http://127.0.0.1:{server.port}/", "timeout_s": 0.5}
    )
    yield made
    made.close()


def test_an_episode_is_played(server, env):
    text, _ = env.reset(seed=5, options={"reset_options": {"level": 2}})
    assert text == "turn 0"
    assert env.step("a")[:4] == ("turn 1", 1.0, False, False)
    text, reward, terminated, _, info = env.step("b")
    assert (text, reward, terminated, info["success"]) == ("turn 2", 2.0, True, True)
    sent = [(m["type"], m["data"]) for m in server.received]
    assert sent == [
        ("reset", {"level": 2, "seed": 5}),
        ("step", {"message": "a"}),
        ("step", {"message": "b"}),
    ]
    env.reset(seed=1, options={"split": "test", "send_split": True})
    assert server.received[-1]["data"] == {"seed": 1, "split": "test"}


def test_success_follows_from_the_return_if_asked(env):
    for wanted, success in ((3.0, True), (3.5, False)):
        env.reset(seed=0, options={"success_return": wanted})
        env.step("a")
        assert env.step("b")[4]["success"] is success


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("fail", "EXECUTION_ERROR: broken. Correct the environment"),
        ("die", "does not answer"),
        ("wait", "no answer to step in 0.5 s"),
    ],
)
def test_failures_of_the_server_raise_and_the_next_episode_works(env, message, error):
    env.reset(seed=0)
    with pytest.raises(OpenEnvUnavailable, match=error):
        env.step(message)
    with pytest.raises(OpenEnvUnavailable, match="the session has ended"):
        env.step("a")
    assert env.reset(seed=0)[0] == "turn 0"
    assert env.step("a")[0] == "turn 1"


def test_a_rejected_action_is_answered_with_the_hint(env):
    env.reset(seed=0)
    text, reward, *_ = env.step("refuse")
    assert (text, reward) == ("Please answer with text.", 0.0)
    assert env.step("a")[0] == "turn 2"


def test_a_strange_answer_is_an_error(server, env):
    env.reset(seed=0)
    with pytest.raises(EnvContractError, match="is 'hello'"):
        env.step("odd")
    server.schema = "no"
    other = make_env("openenv-v0", {"url": f"http://127.0.0.1:{server.port}"})
    with pytest.raises(EnvContractError, match="schema is not JSON"):
        other.reset(seed=0)


def spelled(observation):
    return f"<{observation['text']}>"


def loud(text, given):
    return {"message": text.upper()} if "message" in given["properties"] else None


def test_functions_convert_texts(server, env):
    options = {"observation": f"{__name__}:spelled", "action": f"{__name__}:loud"}
    assert env.reset(seed=0, options=options)[0] == "<turn 0>"
    assert env.step("a")[0] == "<turn 1>"
    assert server.received[-1]["data"] == {"message": "A"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "needs the address of a server"),
        ({"url": "localhost:8000"}, "not an address of an OpenEnv server"),
        ({"url": "http://localhost", "timeout_s": 0.0}, "timeout_s=0.0 must be > 0"),
    ],
)
def test_wrong_options_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        make_env("openenv-v0", config).reset(seed=0)


def test_a_server_that_is_not_there_is_named():
    env = make_env("openenv-v0", {"url": "http://127.0.0.1:1", "timeout_s": 5.0})
    with pytest.raises(OpenEnvUnavailable, match=r"127\.0\.0\.1:1.*Check that it runs"):
        env.reset(seed=0)


def test_an_episode_cannot_be_copied(env):
    env.reset(seed=0)
    with pytest.raises(EnvContractError, match="cannot be copied"):
        env.snapshot()
