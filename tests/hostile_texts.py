"""Completions that break careless parsers."""

from __future__ import annotations

import random

_NESTED = 20_000
_LONG = 60_000  # characters; about what 16,000 tokens hold
_WORDS = [
    *("answer", "python", "search", "sql", "memory", "think", "say", "guess", "path"),
    *("go", "take", "apple", "1", "from", "the", "a", "up", "keep", "look", "click"),
]
_PARTS = [
    *("<answer>", "</answer>", "<python>", "</python>", "<sql>", "</sql>", "<search>"),
    *("</search>", "<memory>", "<tool_call>", "</tool_call>", "<|python_tag|>"),
    *("{", "}", "[", "]", '"', ":", ",", "\\", "\n", " ", "$", "%", "-", "+", "/", "("),
    *(")", "1e999", "-1e999", "NaN", "Infinity", "1e-999999999999", "9" * 400, "0x1F"),
    *("\x00", "\ud800", "\u0663", "\U0001f600", "\u202e", "\ufeff", "١٢", "½", "_1_"),
    *("true", "null", "1.", ".5", "1,000", "None", "__import__('os')._exit(3)"),
]

FIXED = {
    "empty": "",
    "space": " \t\n" * 50,
    "null byte": "\x00",
    "half a surrogate pair": "<answer>\ud800</answer>",
    "huge integer": "1" + "0" * 400,
    "integer beyond Python's limit": "9" * 5_000,
    "infinite float": "1e999",
    "endless exponent": "1e999999999999999999999",
    "signalling nan": "sNaN",
    "nan with a payload": "-NaN123",
    "deep lists": "[" * _NESTED + "]" * _NESTED,
    "unclosed lists": "[" * 99_000,
    "deep objects": '{"a":' * _NESTED + "1" + "}" * _NESTED,
    "deep brackets": "(" * _NESTED + ")" * _NESTED,
    "list as deep as the interpreter": "[" * 900 + "]" * 900,
    "8,000 objects": "[" + ",".join(f'{{"n":{n}}}' for n in range(8_000)) + "]",
    "backtracking": "a" * 40 + "b",
    "number in JSON": '{"n": 1e999, "x": ' + "9" * 400 + "}",
    "fraction": "1/0",
    "unclosed answers": "<answer>" * (_LONG // 8),
    "unclosed programs": "<python>" * (_LONG // 8),
    "unclosed queries": "<sql><answer>" * (_LONG // 13),
    "unclosed calls": "<tool_call>" * (_LONG // 11),
    "many empty answers": "<answer></answer>" * (_LONG // 17),
    "open tags of many names": "".join(f"<t{n}>" for n in range(_LONG // 7)),
    "words": "the a an " * (_LONG // 9),
    "spaces after a command": "go" + " " * _LONG,
    "unfinished commands": "take a " * (_LONG // 7),
    "unfinished paths": "path up " * (_LONG // 8),
    "digits": "1 " * (_LONG // 2),
    "one line": "x" * _LONG,
    "lines": "\n" * _LONG,
    "dollars": "$" * _LONG,
    "boxes": r"\boxed{" * (_LONG // 7),
}


def random_texts(count: int, seed: int = 0) -> list[str]:
    """Return random texts of up to 2,000 hostile parts, words and characters."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        length = int(10 ** rng.uniform(0, 3.3))
        parts = []
        for _ in range(length):
            kind = rng.random()
            if kind < 0.5:
                parts.append(rng.choice(_PARTS))
            elif kind < 0.8:
                parts.append(rng.choice(_WORDS) + " ")
            else:
                parts.append(chr(rng.randrange(0x110000)))
        texts.append("".join(parts))
    return texts


def hostile_texts(count: int = 100) -> list[str]:
    """Return the fixed texts, each bare and in tags, and random ones."""
    fixed = [*FIXED.values()]
    tagged = [f"<answer>{t}</answer>" for t in fixed]
    return [*fixed, *tagged, *random_texts(count)]
