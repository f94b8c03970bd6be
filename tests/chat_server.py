"""A server of OpenAI's chat completions whose replies are those of a function."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USAGE = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}


class ChatServer:
    """An API whose replies are those of a function of the request.

    Args:
        reply: Returns the status and the text of a reply.
        usage: Counts of tokens that every reply reports; None: none.
    """

    def __init__(self, reply, usage=USAGE):
        self.requests, lock = [], threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    server.requests.append({**body, "path": self.path})
                status, text = reply(body)
                answer = {
                    "id": "1",
                    "object": "chat.completion",
                    "created": 0,
                    "model": body["model"],
                    "choices": [
                        {
                            "index": 0,
                            "finish_reason": "stop",
                            "message": {"role": "assistant", "content": text},
                        }
                    ],
                    "usage": usage,
                }
                data = json.dumps(answer if status == 200 else {"error": text}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self):
        self._http.shutdown()
        self._http.server_close()


def bisect(body):
    """Find the number by what the conversation says."""
    low, high = 1, int(re.search(r"1 (?:to|and) (\d+)", str(body["messages"]))[1])
    guess = None
    for message in body["messages"]:
        text = message["content"].lower()
        if message["role"] == "assistant":
            guess = int(re.findall(r"\d+", text)[-1])
        elif guess is not None:
            if "too low" in text:
                low = guess + 1
            elif "too high" in text:
                high = guess - 1
    return 200, f"guess {(low + high) // 2}"
