"""A game in a program of its own: name the word that is shown, over RLlink.

It needs msgpack and no Ray: messages are written by hand, as in other languages.
"""

from __future__ import annotations

import os
import random
import socket
import sys

import msgpack

WORDS = ["red", "green", "blue"]


class Client:
    def __init__(self, address):
        host, port = address.split(":")
        self.sock = socket.create_connection((host, int(port)))

    def send(self, kind, **fields):
        body = msgpack.packb({"type": kind, **fields})
        self.sock.sendall(b"%08d" % len(body) + body)

    def read(self, count):
        data = b""
        while len(data) < count:
            more = self.sock.recv(count - len(data))
            if not more:
                sys.exit(0)  # the EnvRunner has closed the connection
            data += more
        return data

    def ask(self, kind, **fields):
        self.send(kind, **fields)
        return msgpack.unpackb(self.read(int(self.read(8))))


def play(client):
    assert client.ask("PING")["type"] == "PONG"
    while True:
        episode = client.ask("START_EPISODE")
        rng = random.Random(f"{episode['seed']}{episode['split']}")
        num_turns, right = episode["options"].get("turns", 2), 0
        for _ in range(num_turns):
            word = rng.choice(WORDS)
            answer = client.ask(
                "GET_ACTION",
                observation=f"Say {word}.",
                expert_action=word,
                random_action=random.choice(WORDS),
                admissible_actions=WORDS,
            )
            if answer["type"] == "END_EPISODE":
                break
            right += answer["action"].strip() == word
            client.send("LOG_RETURNS", reward=float(answer["action"].strip() == word))
        else:
            client.send(
                "END_EPISODE", success=right == num_turns, metrics={"right": right}
            )


if __name__ == "__main__":
    play(Client(os.environ["RLLINK_ADDRESS"]))
