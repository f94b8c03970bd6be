"""Mutated recipes and overrides, drawn from a seed, and what became of them."""

import copy
import math
import random
import signal
from contextlib import contextmanager
from pathlib import Path

import yaml

from rllib_llm.algorithms.config.sections import SECTIONS
from rllib_llm.errors import RLlibLLMError
from rllib_llm.recipes import load_recipe
from rllib_llm.recipes.boundary import MAX_MESSAGE
from rllib_llm.recipes.names import shipped_recipes
from rllib_llm.recipes.recipe import FIELDS

# Small environments and every algorithm; all of them run without extras.
BASES = (
    "frozen_lake_ppo",
    "guess_number_grpo",
    "duo_action",
    "countdown_grpo",
    "vapo",
    "staged_sft_rl",
    "classic_shape",
)
SECONDS = 30
# With the default: numbers whose type is wider than the default's.
WIDER = ("num_cpus", "num_gpus", "torch_num_threads", "merge_env_runner")
# In the text of a recipe; of values only what YAML can say.
HOSTILE = (
    ".nan", "-.inf", ".inf", "-1", "0", "1e999", "9" * 400, "9" * 5000, "1.5", "true",
    "null", "''", "~", "[]", "{}", "[1, 2]", "[[]]", "{a: 1}", "{1: 2}", "{grid: []}",
    "{grid: [1, x, .nan]}", "{uniform: [2, 1]}", "{loguniform: [.nan, 1]}", "text",
    "'1e-3'", "2024-01-01", "12:30:45", "0x1F", "os:system", "no_such_module:X",
    "json:loads", "sys:exit", "'\\ud800'", "\"\\0\"", "../../x", "a/b", "..",
    "!!set {a}", "!!int ''", "!!binary aGk=", "!!python/name:os.system", "*missing",
    "&a [*a]", "<<: 1", "{<<: {a: 1}}", "[" * 60 + "]" * 60, "x" * 3000, "é\u202e",
    "{name: x}", "[{name: group, scale: .nan}]", "{min: 2, max: 1}", "{least: 1}",
    "[[0, 1e-4], [10, -1]]", "%d", "{{", "- a", "a: b", "#", "@x", "`x`", "|", ">",
)  # fmt: skip
LINES = (
    "training: {}", "name: ..", "name: ../../x", "<<: *nothing", "? [a, b]\n: c",
    "stop: .nan", "stop: {training_iteration: -1}", "expect: {x: {min: 2, max: 1}}",
    "tune: {num_samples: .inf}", "stages: [1]", "stages: {}", "loggers: [[]]", "\t- x",
    "training:", "1: 2", "null: 3", "true: false", "env: [a, b]", "env: {a: b}",
    "algo: 3", "seed: -1", "seed: x", "env: no.such:Env", "env: json:loads", "---",
    "env_config: 3", "env_config: {size: .nan}", "alarms: {kl: {above: .nan}}",
    "learners: {learner_class: os:system}", "...", "%YAML 9.9", "\x00", "\ud83d",
)  # fmt: skip

MARKS = (b":", b"{", b"[", b"&", b"'", b"\t")


def base_texts() -> dict[str, str]:
    """Return the recipes that are mutated, by name."""
    shipped = shipped_recipes()
    found = {n: shipped[n].read_text(encoding="utf-8") for n in BASES if n in shipped}
    found["classic_shape"] = yaml.safe_dump(
        {
            "frozen-lake": {
                "env": "frozen_lake-v0",
                "run": "LLMPPO",
                "stop": {"training_iteration": 3},
                "config": {"lr": 1e-4, "num_workers": 0, "gamma": 0.9},
            }
        }
    )
    found["staged_sft_rl"] = (
        "env: guess_number-v0\nlanguage_model: &small {tiny: {hidden_size: 64}}\n"
        "stages:\n- {name: sft, algo: SFT, stop: {training_iteration: 2}}\n"
        "- name: rl\n  algo: GRPO\n  training: {lr: 1e-5, loss_terms: [entropy]}\n"
        "  rollouts: {episodes_per_iteration: 16, group_size: 4, rewards: [format]}\n"
        "  stop: {training_iteration: 3}\n  expect: {return_std: 0.0}\n"
    )
    return found


class Case:
    """One mutated recipe, or a recipe with hostile overrides.

    Attributes:
        number: Seeds it.
        data: The file's bytes.
        overrides: For :func:`load_recipe`.
    """

    def __init__(self, number: int, bases: dict[str, str]) -> None:
        rng = random.Random(number)
        self.number = number
        text = bases[rng.choice(sorted(bases))]
        self.overrides: list[str] = []
        kind = rng.choice(("value", "value", "line", "text", "override", "override"))
        if kind == "value":
            text = _with_value(rng, text)
        elif kind == "line":
            text = _with_line(rng, text)
        elif kind == "override":
            self.overrides = [_override(rng, text) for _ in range(rng.randint(1, 2))]
        data = text.encode("utf-8", "surrogatepass")
        self.data = _with_bytes(rng, data) if kind == "text" else data


def _paths(data, prefix=()):
    items = data.items() if isinstance(data, dict) else ()
    items = enumerate(data) if isinstance(data, list) else items
    for key, value in items:
        yield (*prefix, key)
        yield from _paths(value, (*prefix, key))


def _with_value(rng: random.Random, text: str) -> str:
    """Put a hostile value at a place of the recipe that has one, or at a new one."""
    data = copy.deepcopy(yaml.safe_load(text))
    path = rng.choice(list(_paths(data)))
    node = data
    for key in path[:-1]:
        node = node[key]
    mark = "HOSTILE"
    if rng.random() < 0.25 and isinstance(node, dict):
        node[rng.choice((f"{path[-1]}x", "no_such", mark))] = mark
    else:
        node[path[-1]] = mark
    return yaml.safe_dump(data, sort_keys=False).replace(mark, rng.choice(HOSTILE))


def _with_line(rng: random.Random, text: str) -> str:
    lines = text.splitlines()
    at = rng.randrange(len(lines) + 1)
    return "\n".join([*lines[:at], rng.choice(LINES), *lines[at:]])


def _with_bytes(rng: random.Random, data: bytes) -> bytes:
    for _ in range(rng.randint(1, 4)):
        at, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        data = rng.choice(
            (
                data[:at] + data[min(end, at + 30) :],
                data[:at] + rng.randbytes(3) + data[at:],
                data[:at] + data[at : at + 40] * 2 + data[at:],
                data.decode("utf-8", "replace").encode("utf-16"),
                data[:at] + rng.choice(MARKS) + data[at:],
            )
        )
        data = data or b"\xff"
    return data


def _override(rng: random.Random, text: str) -> str:
    data = yaml.safe_load(text)
    known = [".".join(map(str, path)) for path in _paths(data)]
    path = rng.choice(
        (
            rng.choice(known),
            f"{rng.choice(known)}.{rng.choice(('x', '0', '-1', '', 'name'))}",
            f"{rng.choice(SECTIONS)}.{rng.choice(('lr', 'x', 'kl', 'group_size'))}",
            rng.choice((*FIELDS, "", ".", "..", "x" * 500, "a.b.c.d", "\ud800")),
        )
    )
    equals = "=" if rng.random() < 0.95 else ""
    return f"{path}{equals}{rng.choice(HOSTILE)}"


class _Hang(BaseException):
    """Raised by the alarm; nothing catches it on the way."""


@contextmanager
def _limited(seconds: int):
    def stop(*_):
        raise _Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(path: Path, overrides: list[str]) -> str:
    """Load and validate a recipe as the command line does.

    Returns:
        "accepted", "refused", or what went wrong, beginning with "FAILED".
    """
    try:
        with _limited(SECONDS):
            load_recipe(path, overrides).validate()
    except _Hang:
        return f"FAILED: more than {SECONDS} s"
    except RLlibLLMError as error:
        message = str(error)
        if len(message) > MAX_MESSAGE + 200:
            return f"FAILED: a message of {len(message)} characters"
        if "cannot be used:" in message or "Traceback" in message:
            return f"FAILED: not explained: {message[:600]}"
        return "refused"
    except BaseException as error:
        return f"FAILED: {type(error).__name__}: {str(error)[:600]}"
    return "accepted"


def nonsense_for(key: str, value: object) -> list[str]:
    """Return what no setting with this default can mean, as YAML."""
    everywhere = ["[[[]]]", "{no: {such: thing}}"]
    if key.startswith(WIDER):
        return [*everywhere, ".nan", "some", "-1000000000"]
    if key == "save_episodes":  # any word may be the name of a folder
        return [*everywhere, ".nan", "3.5", "-1"]
    if isinstance(value, bool):
        return [*everywhere, ".nan", "3.5", "maybe", "-1"]
    if isinstance(value, int):
        return [*everywhere, ".nan", ".inf", "some", "-1000000000", "1.5", "9" * 400]
    if isinstance(value, float) and not math.isinf(value):
        return [*everywhere, ".nan", "-.inf", "some", "-1000000000", "'1.0'", "true"]
    if isinstance(value, str):
        return [*everywhere, ".nan", "3", "true"]
    return everywhere[:1]
