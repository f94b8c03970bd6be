"""docs/coming_from.md: names of the libraries exist, and our programs run.

Our other blocks are run by test_docs.py. Names of the libraries are compared with their
wheels where these are installed: see peer_names.yaml.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.metadata
import inspect
import os
import re
import sys
import types
from pathlib import Path

import pytest
import yaml
from test_docs import blocks

PAGE = Path(__file__).parents[2] / "docs" / "coming_from.md"
RECORD = Path(__file__).parent / "peer_names.yaml"
PEERS = os.environ.get("RLLIB_LLM_PEERS")
# The title of each library's section, its entry in the record, and its package.
LIBRARIES = {
    "OpenRLHF": ("OpenRLHF", "openrlhf"),
    "tinker": ("tinker", "tinker_cookbook"),
    "NeMo-RL": ("NeMo-RL", "nemo_rl"),
    "verifiers and prime-rl": ("verifiers", "verifiers"),
    "TRL": ("TRL", "trl"),
    "AgileRL": ("AgileRL", "agilerl"),
    "AReaL": ("AReaL", "areal"),
    "rLLM": ("rLLM", "rllm"),
    "ART": ("ART", "art"),
    "Agent Lightning": ("Agent Lightning", "agentlightning"),
}
PROGRAMS = ("AReaL", "rLLM", "ART", "Agent Lightning")


def section(title):
    """Return the blocks of a library's section."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    starts = [n for n, line in enumerate(lines, 1) if line.startswith("### ")]
    (first,) = [n for n in starts if lines[n - 1] == f"### {title}"]
    last = min([n for n in starts if n > first], default=len(lines))
    return [block for block in blocks(PAGE) if first < block.line <= last]


def before(title):
    """Return the parsed code of the library."""
    block = section(title)[0]
    assert block.kind == "text", title
    # Top-level await, as in a notebook.
    return compile(
        block.text, title, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )


def imported(tree, package):
    """Return the names that a block imports from a package: name, module."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == package:
            names |= {a.asname or a.name: (node.module, a.name) for a in node.names}
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == package:
                    names[alias.asname or alias.name] = (alias.name, None)
    return names


def names_of(tree, package):
    """Return what a block names of a package: pairs of module (or None) and name.

    Imported names and attributes of imported modules belong to the module; methods that
    the package calls, keywords of its functions and keys of returned dicts to any file.
    """
    given = imported(tree, package)
    named = {(module, name) for module, name in given.values() if name}

    def is_theirs(node):
        node = node.value if isinstance(node, ast.Subscript) else node
        root = node.value if isinstance(node, ast.Attribute) else node
        return isinstance(root, ast.Name) and root.id in given

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module, name = given.get(node.value.id, (None, None))
            if module and name is None:
                named.add((module, node.attr))
        if isinstance(node, ast.Call) and is_theirs(node.func):
            named |= {(None, each.arg) for each in node.keywords if each.arg}
        if isinstance(node, ast.ClassDef) and any(map(is_theirs, node.bases)):
            named |= _of_class(node)
    return named


def _of_class(node):
    methods = [
        n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    own = [m for m in methods if not m.decorator_list and m.name != "__init__"]
    named = {(None, m.name) for m in own}
    for method in own:
        for each in ast.walk(method):
            if isinstance(each, ast.Return) and isinstance(each.value, ast.Dict):
                keys = [k for k in each.value.keys if isinstance(k, ast.Constant)]
                named |= {(None, key.value) for key in keys}
    return named


@pytest.mark.parametrize("title", LIBRARIES)
def test_every_library_has_code_before_and_after(title):
    _, package = LIBRARIES[title]
    assert names_of(before(title), package)
    after = [block.kind for block in section(title)[1:]]
    assert ("python" if title in PROGRAMS else "python run") in after


def test_no_other_library_has_a_section():
    titles = re.findall(r"^### (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert titles == list(LIBRARIES)


def files_of_wheel(package, version):
    """Return the texts of an installed package of this version, by their paths."""
    path = [*([PEERS] if PEERS else []), *sys.path]
    found = importlib.metadata.distributions(name=package, path=path)
    installed = [each for each in found if each.version == version]
    if not installed:
        pytest.skip(f"{package} {version} is not installed (RLLIB_LLM_PEERS)")
    return {
        str(file): Path(file.locate()).read_text(encoding="utf-8", errors="ignore")
        for file in installed[0].files or ()
        if file.suffix == ".py"
    }


@pytest.mark.parametrize("title", LIBRARIES)
def test_names_of_others_are_in_their_wheels(title):
    entry_name, package = LIBRARIES[title]
    entry = yaml.safe_load(RECORD.read_text(encoding="utf-8"))[entry_name]
    if "wheel" not in entry:
        pytest.skip("its names are those of a repository")
    files = files_of_wheel(entry["wheel"], entry["version"])
    every = set().union(*(re.findall(r"\w+", text) for text in files.values()))
    for module, name in names_of(before(title), package):
        words = every
        if module is not None:
            stem = module.replace(".", "/")
            texts = [files.get(f"{stem}.py"), files.get(f"{stem}/__init__.py")]
            assert any(text is not None for text in texts), module
            text = "".join(text or "" for text in texts)
            if "import *" not in text:
                words = set(re.findall(r"\w+", text))
        assert name in words, (module, name)


def function(title, name):
    """Return a function of a library's section that runs beside other code."""
    blocks = [b for b in section(title) if b.kind == "python run"]
    (block,) = [b for b in blocks if f"def {name}(" in b.text]
    (node,) = [
        n
        for n in ast.parse(block.text).body
        if isinstance(n, ast.FunctionDef) and n.name == name
    ]
    namespace = {}
    exec(ast.unparse(node), namespace)
    return namespace[name]


def test_the_grader_rates_answers_to_rows(monkeypatch):
    from rllib_llm.envs.dataset.answers import make_grader
    from rllib_llm.envs.dataset.dataset_rows import Columns, parse_row

    graders = types.ModuleType("my_graders")
    graders.close = function("AgileRL", "close")
    monkeypatch.setitem(sys.modules, "my_graders", graders)
    grader = make_grader("my_graders:close")
    row = parse_row(b'{"prompt": "40 + 2?", "answer": "42"}', Columns())
    answers = ("42.001", "43", "I do not know")
    assert [grader.rate(answer, row) for answer in answers] == [1.0, 0.0, 0.0]


def test_the_reward_reads_what_the_environment_of_rows_reports():
    from component_helpers import trajectory

    from rllib_llm.envs import make_env

    env = make_env("dataset-v0")
    env.reset(seed=0)  # What is 68 + 17?
    info = env.step("85")[-1]
    correct = function("TRL", "correct")
    for text, reward in (("It is 85.", 1.0), ("It is 86.", 0.0)):
        assert correct(trajectory(infos=[info], completions=[text])) == reward


def program(title):
    """Return the function of a library's section that runs as a program."""
    (block,) = [block for block in section(title) if block.kind == "python"]
    namespace = {}
    exec(compile(block.text, str(PAGE), "exec"), namespace)
    functions = [f for f in namespace.values() if inspect.isfunction(f)]
    (function,) = functions
    return function


@pytest.mark.parametrize("title", PROGRAMS)
def test_programs_return_the_reward_of_the_replies(title):
    pytest.importorskip("openai")
    from chat_server import ChatServer

    function = program(title)
    rewards = []
    for text in ("It is 42.", "I do not know."):
        server = ChatServer(lambda body, text=text: (200, text))
        endpoint = types.SimpleNamespace(
            base_url=server.url, api_key="key", models=("policy",)
        )
        result = function({"question": "6 x 7?", "answer": "42"}, endpoint)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
        rewards.append(result["reward"] if isinstance(result, dict) else result)
        assert all(request["model"] == "policy" for request in server.requests)
        server.close()
    assert rewards == [1.0, 0.0]


async def _awaited(result):
    return await result
