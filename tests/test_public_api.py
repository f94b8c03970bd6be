"""The public API against tests/public_api.txt."""

from __future__ import annotations

import difflib
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "public_api.py"))


def test_public_api_is_as_recorded():
    recorded = (ROOT / "tests" / "public_api.txt").read_text(encoding="utf-8")
    now = SCRIPT["public_api"]()
    changes = difflib.unified_diff(
        recorded.splitlines(), now.splitlines(), "recorded", "now", lineterm="", n=0
    )
    assert now == recorded, (
        "The public API differs from tests/public_api.txt. If that is meant, say it in "
        "CHANGELOG.md and renew the file: python scripts/public_api.py > "
        "tests/public_api.txt\n" + "\n".join(changes)
    )


def test_a_change_of_a_signature_would_be_seen():
    class Old:
        def act(self, a, *, b=1): ...

    class New:
        def act(self, a, *, b=2): ...

    Old.__module__ = New.__module__ = "rllib_llm.example"
    described = [list(SCRIPT["_members"](cls)) for cls in (Old, New)]
    assert described == [["  act(self, a, *, b=1)"], ["  act(self, a, *, b=2)"]]
