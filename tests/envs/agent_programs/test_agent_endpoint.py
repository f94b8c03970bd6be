"""Requests and responses of the endpoint, with a policy that is a function."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest
from agent_program_toys import post
from endpoint_sessions import reply_of, served

from rllib_llm.data.types import FinishReason
from rllib_llm.envs.agent_programs import endpoint
from rllib_llm.envs.agent_programs.session import MOST_WAITING
from rllib_llm.openai_api import request_fields
from rllib_llm.openai_api.requests import MOST_SAMPLES, Sampling

pytest.importorskip("aiohttp")

HELLO = [{"role": "user", "content": "Hello."}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        },
    },
}
CALL = '<tool_call>{"name": "add", "arguments": {"b": 2, "a": 1}}</tool_call>'


def chat(one, messages=HELLO, model="alice", **body):
    return post(one.endpoint, model=model, messages=messages, **body)


def get(one, path, key=None):
    request = urllib.request.Request(
        f"{one.endpoint.base_url}/{path}",
        headers={"Authorization": f"Bearer {key or one.endpoint.api_key}"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


def events(one, **body):
    """Return the parsed events of a stream, the last one as text."""
    request = urllib.request.Request(
        f"{one.endpoint.base_url}/{body.pop('path', 'chat/completions')}",
        data=json.dumps({"model": "alice", "stream": True, **body}).encode(),
        headers={"Authorization": f"Bearer {one.endpoint.api_key}"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        parts = answer.read().decode().strip().split("\n\n")
    assert all(part.startswith("data: ") for part in parts)
    assert parts[-1] == "data: [DONE]"
    return [json.loads(part[6:]) for part in parts[:-1]]


# Responses ----------------------------------------------------------------------------


def test_a_message():
    with served() as one:
        status, answer = chat(one, logprobs=True, return_token_ids=True)
    assert status == 200 and answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "reply to Hello."}
    assert choice["finish_reason"] == "stop" and choice["index"] == 0
    assert choice["token_ids"] == [ord(c) for c in "reply to Hello."]
    first = choice["logprobs"]["content"][0]
    assert first == {
        "token": "r",
        "logprob": -0.125,
        "bytes": [114],
        "top_logprobs": [],
    }
    assert answer["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 15,
        "total_tokens": 25,
    }


def test_without_logprobs_there_are_none():
    with served() as one:
        choice = chat(one)[1]["choices"][0]
    assert choice["logprobs"] is None and "token_ids" not in choice


def test_a_cut_reply():
    with served(lambda call: reply_of("cut", FinishReason.LENGTH)) as one:
        assert chat(one)[1]["choices"][0]["finish_reason"] == "length"


def test_several_replies_are_turns_of_several_conversations():
    numbers = iter(range(9))
    with served(lambda call: f"{next(numbers)}") as one:
        _, answer = chat(one, n=3)
    assert [c["message"]["content"] for c in answer["choices"]] == ["0", "1", "2"]
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    assert [r.conversation for r in one.requests] == [0, 1, 2]
    assert [r.sample for r in one.requests] == [0, 1, 2]
    assert answer["usage"]["prompt_tokens"] == 10
    assert answer["usage"]["completion_tokens"] == 3


def test_a_stream():
    with served() as one:
        chunks = events(
            one, messages=HELLO, stream_options={"include_usage": True}, n=2
        )
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert len({c["id"] for c in chunks}) == 1
    texts = ["", ""]
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == ["reply to Hello."] * 2
    finishes = [c["choices"][0]["finish_reason"] for c in chunks[:-1]]
    assert finishes == [None, None, "stop"] * 2
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["total_tokens"] == 40


def test_completions():
    with served() as one:
        status, answer = post(
            one.endpoint, "completions", model="alice", prompt="Once", logprobs=0
        )
        chunks = events(one, path="completions", prompt="Once")
    assert status == 200 and answer["object"] == "text_completion"
    (choice,) = answer["choices"]
    assert choice["text"] == "reply to Once"
    assert choice["logprobs"]["tokens"] == list("reply to Once")
    assert choice["logprobs"]["text_offset"] == list(range(13))
    assert "".join(c["choices"][0]["text"] for c in chunks) == "reply to Once"


def test_token_ids_that_repeat_a_completion_continue_it():
    with served(lambda call: "ab") as one:

        def complete(prompt):
            body = {"prompt": prompt, "return_token_ids": True}
            answer = post(one.endpoint, "completions", model="alice", **body)[1]
            return answer["choices"][0]["token_ids"]

        ids = [5, 6, *complete([5, 6])]
        complete([*ids, 7])
        complete([5, 7])
    numbers = [(r.conversation, r.continues, r.prompt) for r in one.requests]
    assert numbers == [(0, False, (5, 6)), (0, True, (7,)), (1, False, (5, 7))]


def test_models():
    with served() as one:
        assert [m["id"] for m in get(one, "models")["data"]] == ["alice", "bob"]
        assert get(one, "models/bob")["id"] == "bob"


# Tools --------------------------------------------------------------------------------


def test_tools():
    with served(lambda call: f"Let me see. {CALL}") as one:
        choice = chat(one, tools=[ADD])[1]["choices"][0]
        message = choice["message"]
        (call,) = message["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "3"}
        chat(one, [*HELLO, message, result], tools=[ADD])
        chunks = events(one, messages=HELLO, tools=[ADD])
    assert choice["finish_reason"] == "tool_calls"
    assert message["content"] == "Let me see."
    assert call["function"] == {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    first, second, third = one.requests
    assert second.continues and second.conversation == first.conversation
    (shown,) = second.messages
    assert (shown.role, shown.content, shown.name) == ("tool", "3", "add")
    assert not third.continues
    delta = chunks[1]["choices"][0]["delta"]
    assert delta["tool_calls"][0]["index"] == 0
    assert chunks[2]["choices"][0]["finish_reason"] == "tool_calls"


def test_arguments_that_are_written_anew_continue():
    """Some clients parse the arguments and write them in another order."""
    with served(lambda call: CALL) as one:
        message = chat(one, tools=[ADD])[1]["choices"][0]["message"]
        (call,) = message["tool_calls"]
        call["function"]["arguments"] = '{"b":2,"a":1}'
        result = {"role": "tool", "tool_call_id": call["id"], "content": "3"}
        chat(one, [*HELLO, message, result], tools=[ADD])
    assert one.requests[1].continues


@pytest.mark.parametrize(
    "text", ["<tool_call>{bad}</tool_call>", CALL + "<tool_call>{bad}</tool_call>"]
)
def test_malformed_calls_stay_text(text):
    with served(lambda call: text) as one:
        choice = chat(one, tools=[ADD])[1]["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": text}
    assert choice["finish_reason"] == "stop"


def test_tool_choice_none_presents_no_tools():
    with served(lambda call: CALL) as one:
        message = chat(one, tools=[ADD], tool_choice="none")[1]["choices"][0]["message"]
    assert message["content"] == CALL and one.requests[0].tools is None


# Conversations ------------------------------------------------------------------------


def user(text):
    return {"role": "user", "content": text}


def test_conversations():
    with served() as one:

        def turn(messages, model="alice"):
            return chat(one, messages, model)[1]["choices"][0]["message"]

        a = turn(HELLO)
        b = turn([*HELLO, a, user("On.")])
        turn([*HELLO, a, user("On."), b, user("And on.")])
        turn([*HELLO, a, user("Or.")])  # a branch
        turn([user("Hello!"), a, user("On.")])  # rewritten
        turn([*HELLO, {**a, "content": "edited"}, user("On.")])
        turn(HELLO)  # the same again
        turn(HELLO, "bob")
        turn([*HELLO, a, user("On."), b, user("And on."), a, user("Made up.")])
    places = [(r.conversation, r.continues) for r in one.requests]
    assert places == [
        *[(0, False), (0, True), (0, True)],
        *[(1, False), (2, False), (3, False), (4, False)],
        (0, False),
        (5, False),
    ]
    # Only what is new is given to a conversation that continues.
    assert [m.content for m in one.requests[1].messages] == ["On."]
    assert len(one.requests[3].messages) == 3


def test_text_parts_and_developer_messages():
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo."}]
    messages = [
        {"role": "developer", "content": "Be terse."},
        {"role": "user", "content": parts, "name": "ann"},
    ]
    with served() as one:
        assert chat(one, messages)[0] == 200
    shown = [(m.role, m.content) for m in one.requests[0].messages]
    assert shown == [("system", "Be terse."), ("user", "Hello.")]


def test_settings_of_a_request():
    with served() as one:
        body = {"stop": "x", "seed": 7, "max_tokens": 9, "max_completion_tokens": 5}
        assert chat(one, **body)[0] == 200
        assert chat(one, stop=["x", "yy"], temperature=1, top_p=1.0)[0] == 200
    first, second = one.requests
    assert (first.stop, first.seed, first.max_tokens) == (("x",), 7, 5)
    assert second.stop == ("x", "yy") and second.max_tokens is None


# Refusals -----------------------------------------------------------------------------

REFUSED = [
    ({"temperature": 0.5}, "temperature"),
    ({"top_p": 0.9}, "top_p"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_logprobs": 5, "logprobs": True}, "top_logprobs"),
    ({"frequency_penalty": 1.0}, "frequency_penalty"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"tools": [ADD], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [ADD], "parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"tools": "all"}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools[0]"),
    ({"n": 0}, "n"),
    ({"n": MOST_SAMPLES + 1}, "n"),
    ({"n": True}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 2.5}, "max_tokens"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"seed": 0.5}, "seed"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"messages": []}, "messages"),
    ({"messages": "Hello."}, "messages"),
    ({"messages": ["Hello."]}, "messages[0]"),
    ({"messages": [{"role": "judge", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [*HELLO, {"role": "assistant", "content": "I"}]}, "messages"),
    (
        {"messages": [{"role": "tool", "tool_call_id": "x", "content": "3"}]},
        "messages[0].tool_call_id",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": 5}]}, *HELLO]},
        "messages[0].tool_calls",
    ),
]


@pytest.mark.parametrize("body, param", REFUSED, ids=lambda v: str(v)[:40])
def test_refused_fields(body, param):
    with served() as one:
        status, answer = post(
            one.endpoint, **{"model": "alice", "messages": HELLO, **body}
        )
        assert chat(one)[0] == 200  # the episode goes on
    assert status == 400, answer
    assert answer["error"]["param"] == param
    assert len(answer["error"]["message"]) < 400
    assert len(one.requests) == 1


def test_unsupported_fields_are_named():
    with served() as one:
        status, answer = chat(one, guided_regex="a+")
    assert status == 400 and "guided_regex" in answer["error"]["message"]


def test_temperature_of_the_training_run():
    with served(sampling=Sampling(temperature=0.7)) as one:
        assert chat(one, temperature=0.7)[0] == 200
        status, answer = chat(one, temperature=1.0)
    assert status == 400 and "generation.temperature" in answer["error"]["message"]


def test_keys():
    with served() as one, served() as other:
        assert chat(one, model="carol")[0] == 404
        wrong = [("nonsense", 401, "invalid_api_key")]
        wrong.append((other.endpoint.api_key, 403, "wrong_episode"))
        for key, status, code in wrong:
            got = post(one.endpoint, key=key, model="alice", messages=HELLO)
            assert (got[0], got[1]["error"]["code"]) == (status, code)
        one.close()
        status, answer = chat(one)
        assert (
            status == 410 and "the program has returned" in answer["error"]["message"]
        )
        with pytest.raises(urllib.error.HTTPError, match="410"):
            get(one, "models")
        assert chat(other)[0] == 200


def test_a_body_that_comes_too_slowly_is_refused(monkeypatch):
    for module in (endpoint, request_fields):
        monkeypatch.setattr(module, "BODY_TIMEOUT_S", 0.2)
    with served() as one:
        _, _, address, path = one.endpoint.base_url.split("/", 3)
        host, port = address.split(":")
        head = (
            f"POST /{path}/chat/completions HTTP/1.1\r\nHost: {host}\r\n"
            f"Authorization: Bearer {one.endpoint.api_key}\r\n"
            "Content-Length: 100\r\n\r\n"
        )
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(head.encode() + b'{"model": ')
            received = connection.recv(65536)
        assert received.split()[1] == b"408"
        assert b"did not arrive within 0.2 s" in received
        assert not one.requests
        assert chat(one)[0] == 200


def test_waiting_requests_end_with_the_episode():
    with served() as one:
        one.gate.clear()
        answers = []
        threads = [
            threading.Thread(target=lambda: answers.append(chat(one)[0]))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        until(lambda: len(one.session._open) == 3)
        one.close("timeout")
        for thread in threads:
            thread.join(10)
    # The first had been taken by the policy's thread, which has answered it or not.
    assert len(answers) == 3 and answers.count(410) >= 2


def test_too_many_requests():
    with served() as one:
        one.gate.clear()
        for _ in range(MOST_WAITING // MOST_SAMPLES):
            threading.Thread(target=lambda: chat(one, n=MOST_SAMPLES)).start()
        until(lambda: len(one.session._open) == MOST_WAITING)
        status, answer = chat(one)
    assert status == 429 and answer["error"]["code"] == "too_many_requests"


# Disconnects --------------------------------------------------------------------------


def until(condition, seconds=10):
    end = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < end
        time.sleep(0.01)


def raw_request(one, body, key=None):
    """Return a connected socket that has sent a request."""
    data = json.dumps(body).encode()
    host, port = one.endpoint.base_url.split("/")[2].split(":")
    path = "/" + one.endpoint.base_url.split("/", 3)[3]
    connection = socket.create_connection((host, int(port)), timeout=20)
    head = (
        f"POST {path}/chat/completions HTTP/1.1\r\nHost: {host}\r\n"
        f"Authorization: Bearer {key or one.endpoint.api_key}\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    connection.sendall(head.encode() + data)
    return connection


BODY = {"model": "alice", "messages": HELLO}


def test_a_repeated_request_takes_the_reply_of_the_first_attempt():
    numbers = iter(range(9))
    with served(lambda call: f"{next(numbers)}") as one:
        one.gate.clear()
        connection = raw_request(one, BODY)
        until(lambda: len(one.session._open) == 1)
        (call,) = one.session._open
        call.is_taken = True  # as if its policy had begun
        connection.close()
        until(lambda: call.is_orphan)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(chat(one)))
        thread.start()
        until(lambda: not call.is_orphan)
        one.gate.set()
        thread.join(10)
    ((status, answer),) = answers
    assert status == 200 and answer["choices"][0]["message"]["content"] == "0"
    assert len(one.requests) == 1


def test_a_request_that_was_given_up_twice_is_answered_once():
    numbers = iter(range(9))
    with served(lambda call: f"{next(numbers)}") as one:
        one.gate.clear()
        for count in (1, 2):
            connection = raw_request(one, BODY)
            until(lambda count=count: len(one.session._open) == count)
            for call in one.session._open:
                call.is_taken = True
            if count == 1:
                # The first attempt is still open when the second one comes.
                first = connection
            else:
                connection.close()
                first.close()
        until(lambda: all(c.is_orphan for c in one.session._open))
        one.gate.set()
        until(lambda: all(c.is_answered for c in one.session._open))
        assert chat(one)[1]["choices"][0]["message"]["content"] == "0"
        assert chat(one)[1]["choices"][0]["message"]["content"] == "1"
        assert chat(one)[1]["choices"][0]["message"]["content"] == "2"


def test_replies_that_nobody_read_do_not_count_as_waiting():
    with served() as one:
        one.gate.clear()
        connection = raw_request(one, BODY)
        until(lambda: len(one.session._open) == 1)
        (call,) = one.session._open
        call.is_taken = True
        connection.close()
        until(lambda: call.is_orphan)
        one.gate.set()
        until(lambda: call.is_answered)
        assert list(one.session._open) == [call]
        one.gate.clear()
        for _ in range(MOST_WAITING // MOST_SAMPLES):
            threading.Thread(target=lambda: chat(one, n=MOST_SAMPLES)).start()
        until(lambda: len(one.session._open) == 1 + MOST_WAITING)


def test_a_queued_request_whose_program_left_is_not_sampled():
    with served() as one:
        one.gate.clear()
        first = threading.Thread(target=lambda: chat(one, [user("first")]))
        first.start()
        until(lambda: len(one.session._open) == 1)
        connection = raw_request(one, BODY)
        until(lambda: len(one.session._open) == 2)
        connection.close()
        until(lambda: any(c.is_orphan for c in one.session._open))
        one.gate.set()
        first.join(10)
        assert chat(one, [user("next")])[0] == 200
    assert [r.messages[0].content for r in one.requests] == ["first", "next"]
