"""Check docstrings and names against the language rules of CONTRIBUTING.md.

    python scripts/lint_language.py               # every tracked file
    python scripts/lint_language.py rllib_llm/envs docs

It refuses docstrings that begin with a relative clause, retired words in names that a
Python file defines, and retired phrases in docstrings, comments, messages, YAML, docs.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# A docstring names its subject or begins with a verb.
_HEADLESS = re.compile(
    r"(What|Whatever|Who|Whom|Whose|Where|When|How|Why|Which|Whether|From .* to)\b"
)
# So does an entry of Args, Attributes or Raises.
_HEADLESS_ENTRY = re.compile(
    r"^ +\w+: (?:What|Which|Who|Whom|Where|How (?:many|often)|Of)\b.*", re.MULTILINE
)
# Words of names, and the word of the field that stands for each.
RETIRED_NAMES = {
    "piece": "component",
    "pieces": "components",
    "seat": "agent",
    "seats": "agents",
    "seated": "assigned",
    "voice": "action_source",
    "voices": "action_sources",
    "lineup": "assignment",
    "casting": "build",
    "chooser": "scorer",
    "told": "observed",
    "said": "sampled, completion",
    "heard": "received",
    "deaf": "inactive",
    "verdict": "outcome, result",
    "verdicts": "outcomes, results",
    "memories": "state",
    "paid": "reward",
    "pays": "reward",
    "earned": "return",
    "credit": "advantage",
    "credits": "advantages",
    "credited": "with_advantages",
    "ledger": "reward_log",
    "ladder": "threshold",
    "scaffold": "template",
    "sibling": "group mate",
    "siblings": "group mates",
    "normaliser": "aggregation",
    "objectives": "losses, advantages",
    "speaker": "agent",
    "sits": "is assigned",
}
# Locals that say nothing about what they hold, in the package itself.
EMPTY_NAMES = {"found": "what it holds", "known": "what it holds", "own": "its owner"}
_PHRASES = {
    r"\bwarm[- ]start(s|ed|ing)?\b": "SFT",
    r"\bline-ups?\b": "policy assignment",
    r"\bseats?\b": "agent",
    r"\bverdicts?\b": "outcome, result",
    r"\b(credit )?pieces?\b": "component",
    r"\bflat groups?\b": "zero-variance groups",
    r"\bsampler gaps?\b": "train-inference mismatch",
    r"\bweights lag\b": "policy staleness",
    r"\bscaffolds?\b": "template",
    r"\bchoosers?\b": "action scorer",
    r"\bhand(ed|ing) over\b": "initialised from a checkpoint",
    r"\bclassic (RLModules?|polic(y|ies))\b": "RLModule that is no language model",
    r"\bdeaf\b": "inactive",
    r"\bsits? down\b": "joins",
    r"\bledgers?\b": "reward log",
    r"\bcredit(?! assignment)\b": "advantage, credit assignment",
    r"\bearn(s|ed|ing)?\b": "has the reward, has the return",
    r"\b(pays|paid)\b": "rewards, rewarded",
    r"\b(is|are|was|were|be|been) told\b": "receives, observes",
    r"\bspeaks?\b": "acts, sends a message",
    r"\bmay know\b": "has the information",
    r"\bprais(e|es|ed|ing)\b": "a positive advantage",
    r"\blearnt\b": "learned",
    r"\blikeliest\b": "most likely",
    r"\bwhoever\b": "the agent that, the code that",
    r"\bmend(s|ed|ing)?\b": "correct, repair",
    r"\b[Tt]urn `?max_turns`? truncates\b": "truncated after max_turns turns",
    r"\b(environment|game)'s own time\b": "the time of the environment",
}
# Texts that are not ours: words of games, of papers, of logs and of the past.
_EXEMPT = (
    "CHANGELOG.md",
    "LICENSE",
    "scripts/lint_language.py",
    "tests/docs/test_language.py",
    "rllib_llm/envs/data/",
    "tests/envs/golden/",
    "docs/results/",
    "constraints.txt",
    "docs/environments/long_document.md",  # "seat" is a relation of its puzzles
)
_ALLOW = "language: "  # a comment with it exempts its line, and says why


def main(paths: list[str]) -> int:
    """Write every violation below ``paths``; return the exit status."""
    problems = [p for file in _files(paths) for p in check(file)]
    if problems:
        count = f"{len(problems)} violations of the language rules in CONTRIBUTING.md."
        sys.stdout.write("\n".join([*problems, count, ""]))
    return bool(problems)


def check(file: Path) -> Iterator[str]:
    """Yield ``file:line: problem`` of one file."""
    text = file.read_text(encoding="utf-8")
    where = file.relative_to(ROOT).as_posix()
    lines = text.splitlines()
    if file.suffix == ".py":
        for line, problem in _python_problems(ast.parse(text), where):
            if _ALLOW not in lines[line - 1]:
                yield f"{where}:{line}: {problem}"
    for number, line in enumerate(lines, start=1):
        for phrase, better in _PHRASES.items():
            match = re.search(phrase, line)
            if match and _ALLOW not in line:
                yield f"{where}:{number}: {match.group()!r}; say {better!r}"


def _python_problems(tree: ast.Module, where: str) -> Iterator[tuple[int, str]]:
    retired = dict(RETIRED_NAMES)
    if where.startswith("rllib_llm/"):
        retired |= EMPTY_NAMES
    seen = set()
    for node in ast.walk(tree):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ):
            doc = ast.get_docstring(node)
            line = node.body[0].lineno if doc else 1
            if doc and _HEADLESS.match(doc):
                yield line, f"docstring begins {doc.split()[0]!r}: name the thing"
            if doc and not where.startswith("tests/"):
                for entry in _HEADLESS_ENTRY.findall(doc):
                    yield line, f"entry {entry.strip()!r}: name the thing"
        for name in _defined(node):
            words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)
            for word in words:
                better = retired.get(word.lower())
                if better and (name, word) not in seen:
                    seen.add((name, word))
                    yield getattr(node, "lineno", 1), f"name {name!r}; say {better!r}"


def _defined(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr


def _files(paths: list[str]) -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in listed.split("\0"):
        file = ROOT / name
        if (
            name
            and not name.startswith(_EXEMPT)
            and file.suffix in (".py", ".md", ".yaml", ".yml", ".ipynb")
            and file.is_file()
            and not file.is_symlink()
        ):
            yield file


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
