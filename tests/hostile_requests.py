"""Requests that a broken or malicious client might send to the endpoint."""

from __future__ import annotations

import json
import random
import socket

VALID = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 2}
_VALUES = (
    *(None, True, -1, 0, 1.5, 10**30, "", "x", "\x00", [], [[]], {}, {"a": {}}),
    *(["user"], {"role": "user"}, "a" * 5000, float("nan"), float("inf")),
)
_FIELDS = (
    *("model", "messages", "tools", "tool_choice", "n", "max_tokens", "stop", "seed"),
    *("stream", "stream_options", "logprobs", "top_logprobs", "temperature", "top_p"),
    *("response_format", "logit_bias", "unknown", "prompt", "parallel_tool_calls"),
)
_MESSAGE_FIELDS = ("role", "content", "tool_calls", "tool_call_id", "function_call")
KINDS = (
    *("field", "message", "bytes", "nested", "cut_json", "prompt"),
    *("wrong_key", "no_key", "other_episode", "path", "method", "huge_text"),
    *("huge_body", "hang_up_in_body", "hang_up", "hang_up_in_stream", "no_http"),
)
HANGS_UP = ("hang_up_in_body", "hang_up", "hang_up_in_stream")


class Attacker:
    """Sends hostile requests to one episode's endpoint.

    Args:
        endpoint: The ProgramEndpoint of the episode.
        seed: Seed of the requests.
    """

    def __init__(self, endpoint, seed):
        self._endpoint, self._rng = endpoint, random.Random(seed)
        self._host, self._port = endpoint.base_url.split("/")[2].split(":")
        self._base = "/" + endpoint.base_url.split("/", 3)[3]

    def attack(self, kind):
        """Send one request; return its status, None if there was no answer.

        Returns:
            The status, and the parsed body of the answer.
        """
        return getattr(self, f"_{kind}")()

    def _send(
        self,
        data=b"",
        *,
        path="/chat/completions",
        key=None,
        method="POST",
        length=None,
        hang_up=None,
    ):
        key = self._endpoint.api_key if key is None else key
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        head = (
            f"{method} {self._base}{path} HTTP/1.1\r\nHost: {self._host}\r\n"
            f"{authorization}Connection: close\r\n"
            f"Content-Length: {len(data) if length is None else length}\r\n\r\n"
        )
        return self._exchange(head.encode() + data, hang_up)

    def _exchange(self, data, hang_up=None):
        address = (self._host, int(self._port))
        with socket.create_connection(address, timeout=60) as connection:
            try:
                connection.sendall(data)
                if hang_up == "at_once":
                    return None, None
                received = connection.recv(65536)
                if hang_up == "in_stream":
                    return None, None
                while part := connection.recv(65536):
                    received += part
            except ConnectionError:  # the server refused the rest of a huge body
                return None, None
        head, _, body = received.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        chunked = b"transfer-encoding: chunked" in head.lower()
        return status, None if chunked or not body else _parsed(body)

    def _body(self, **changed):
        return {"model": self._endpoint.models[0], **VALID, **changed}

    def _post(self, body, **kwargs):
        return self._send(json.dumps(body).encode(errors="surrogatepass"), **kwargs)

    def _field(self):
        field = self._rng.choice(_FIELDS)
        return self._post(self._body(**{field: self._rng.choice(_VALUES)}))

    def _message(self):
        field = self._rng.choice(_MESSAGE_FIELDS)
        message = {**VALID["messages"][0], field: self._rng.choice(_VALUES)}
        return self._post(self._body(messages=[message]))

    def _bytes(self):
        return self._send(self._rng.randbytes(self._rng.randrange(1, 2000)))

    def _nested(self):
        depth = self._rng.choice((100, 100_000))
        return self._send(b'{"model": ' + b"[" * depth + b"]" * depth + b"}")

    def _cut_json(self):
        data = json.dumps(self._body()).encode()
        return self._send(data[: self._rng.randrange(len(data))])

    def _prompt(self):
        prompt = self._rng.choice((*_VALUES, [-1], [10**9], [0.5], ["a", "b"]))
        body = {"model": self._endpoint.models[0], "prompt": prompt, "max_tokens": 1}
        return self._post(body, path="/completions")

    def _wrong_key(self):
        return self._post(self._body(), key=f"sk-{self._rng.random()}")

    def _no_key(self):
        return self._post(self._body(), key="")

    def _other_episode(self):
        base, self._base = self._base, "/episodes/0123456789abcdef/v1"
        try:
            return self._post(self._body())
        finally:
            self._base = base

    def _path(self):
        return self._post(self._body(), path=self._rng.choice(("/x", "/../..", "/%00")))

    def _method(self):
        method = self._rng.choice(("GET", "PUT", "DELETE", "PATCH"))
        return self._send(method=method)

    def _huge_text(self):
        text = "word " * self._rng.randrange(20_000, 200_000)
        return self._post(self._body(messages=[{"role": "user", "content": text}]))

    def _huge_body(self):
        return self._send(b"x" * (9 * 2**20))

    def _hang_up_in_body(self):
        data = json.dumps(self._body()).encode()
        return self._send(data[:20], length=len(data), hang_up="at_once")

    def _hang_up(self):
        messages = [{"role": "user", "content": f"{self._rng.random()}"}]
        return self._post(self._body(messages=messages), hang_up="at_once")

    def _hang_up_in_stream(self):
        messages = [{"role": "user", "content": f"{self._rng.random()}"}]
        body = self._body(messages=messages, stream=True, n=2)
        return self._post(body, hang_up="in_stream")

    def _no_http(self):
        data = self._rng.choice(
            (b"\x16\x03\x01\x02\x00", b"BREW / HTTP/1.1\r\n", b"\r\n\r\n")
        )
        return self._exchange(data + b"x" * 100 + b"\r\n\r\n")


def _parsed(body):
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")
