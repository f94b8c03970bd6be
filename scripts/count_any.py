"""Share of the package's arguments that are typed ``Any``, with an upper bound.

    python scripts/count_any.py [--list]

``*args`` and ``**kwargs`` do not count. Use the class or a Protocol where code calls
methods, ``object`` where any value may come, and ``Any`` where neither can be said,
e.g. for an environment author's own actions.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "rllib_llm"
MOST = 0.03


def arguments(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield each argument as ``file:line name``, and whether it is typed ``Any``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        args = node.args
        for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs):
            if arg.arg not in ("self", "cls"):
                is_any = arg.annotation is not None and ast.unparse(arg.annotation)
                place = f"{path.relative_to(PACKAGE)}:{arg.lineno}"
                yield f"{place} {node.name}({arg.arg})", is_any == "Any"


def main() -> int:
    """Print the share; return 1 if it is above the bound."""
    write = sys.stdout.write
    found = [each for path in sorted(PACKAGE.rglob("*.py")) for each in arguments(path)]
    named = [name for name, is_any in found if is_any]
    share = len(named) / len(found)
    write(f"{len(named)} of {len(found)} arguments ({share:.1%}) are typed Any.\n")
    if share > MOST or "--list" in sys.argv[1:]:
        write("\n".join(named) + "\n")
    if share > MOST:
        write(f"At most {MOST:.0%} may be. Name the class, or use object.\n")
    return int(share > MOST)


if __name__ == "__main__":
    sys.exit(main())
