"""Virtual environment as after ``make demo``, without installing anything."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGE = "rllib-llm"


def extras_of_demo() -> set[str]:
    """Return the extras that the Makefile installs before ``make demo`` trains."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rule = re.search(r"^\$\(VENV\)/\.installed: .*\n((?:\t.*\n)+)", makefile, re.M)
    (extras,) = re.findall(r"-e '?\.(?:\[([\w,-]+)\])?'?$", rule[1], re.M)
    return set(filter(None, extras.split(",")))


def requirements_of_demo() -> list[Requirement]:
    """Return the requirements of the package and these extras."""
    code = (
        "import json, setuptools; setuptools.setup = lambda **k: print(json.dumps("
        "[k['install_requires'], k['extras_require']])); exec(open('setup.py').read(),"
        " {'__file__': 'setup.py', '__name__': '__main__'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    required, extras = json.loads(done.stdout)
    texts = required + [r for e in extras_of_demo() for r in extras[e]]
    return [Requirement(text) for text in texts]


def distributions(requirements: list[Requirement]) -> dict[str, metadata.Distribution]:
    """Return the installed distributions of the requirements, by canonical name."""
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [(r, "") for r in requirements]
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        found[name] = metadata.distribution(name)
        children = [Requirement(text) for text in found[name].requires or ()]
        todo += [(r, e) for r in children for e in ("", *requirement.extras)]
    return found


def make_demo_environment(folder: Path, checkout: Path) -> Path:
    """Make ``folder`` what ``make demo`` makes of ``.venv`` in ``checkout``.

    Distributions that the demo installs are links to those of this environment; what
    else is installed here cannot be imported there.

    Returns:
        The folder of its commands.
    """
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for distribution in distributions(requirements_of_demo()).values():
        for top in {file.parts[0] for file in distribution.files or ()}:
            source = Path(str(distribution.locate_file(top)))
            if top not in ("..", "__pycache__") and source.exists():
                link = site / top
                if not link.exists():
                    link.symlink_to(source)
    (site / "checkout.pth").write_text(f"{checkout}\n", encoding="utf-8")
    script = folder / "bin" / PACKAGE
    script.write_text(
        f"#!{folder}/bin/python\nfrom rllib_llm.cli.main import main\n\nmain()\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    return folder / "bin"
