"""Contents of the distributions, and import rules."""

from __future__ import annotations

import ast
import email.policy
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from rllib_llm.version import __version__ as VERSION

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    p
    for folder in ("rllib_llm", "tests", "benchmarks", "docs")
    for p in (ROOT / folder).rglob("*.py")
)
MOST_LINES, MOST_FUNCTION_LINES = 600, 80


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """A source distribution, built from a copy of the sources without a network."""
    work = tmp_path_factory.mktemp("sdist")
    copy = work / "source"
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "*.egg-info", "dist")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
    build = "import sys, setuptools.build_meta as b; b.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", build, str(work), cwd=copy)
    (path,) = work.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(sdist):
    """A wheel built from the source distribution, as package indexes' users do."""
    with tarfile.open(sdist) as archive:
        # Python 3.11.4 and later know filters, and later ones ask for one.
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(sdist.parent, **safe)
    source = sdist.parent / sdist.name.removesuffix(".tar.gz")
    command = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(sdist.parent)]
    run(sys.executable, "-m", "pip", *command, str(source))
    (path,) = sdist.parent.glob("*.whl")
    return path


def run(*command, cwd=None):
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr[-2000:]


def names_in(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def shipped_files():
    """Return the files of the package and the tuned examples, as they lie here."""
    package = [p for p in (ROOT / "rllib_llm").rglob("*") if p.is_file()]
    shipped = [p for p in package if "__pycache__" not in p.parts]
    examples = (ROOT / "tuned_examples").rglob("*.*")
    shipped += [p for p in examples if p.suffix in {".md", ".yaml"}]
    return {p.relative_to(ROOT).as_posix() for p in shipped}


def test_the_source_distribution_holds_what_is_built_from_and_nothing_else(sdist):
    with tarfile.open(sdist) as archive:
        paths = [m.name.split("/", 1)[1] for m in archive.getmembers() if m.isfile()]
    made = {p for p in paths if ".egg-info/" in p}
    named = {"PKG-INFO", "setup.cfg", "setup.py", "pyproject.toml", "MANIFEST.in"}
    texts = {"README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "constraints.txt"}
    assert set(paths) - made == shipped_files() | named | texts


def test_the_wheel_holds_the_package_and_the_examples_and_nothing_else(wheel):
    found = {n for n in names_in(wheel) if ".dist-info/" not in n}
    assert found == {
        f"rllib_llm/{name}" if name.startswith("tuned_examples/") else name
        for name in shipped_files()
    }


def test_the_wheel_installs_one_name(wheel):
    tops = {name.split("/")[0] for name in names_in(wheel)}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"rllib_llm"}


def test_the_wheel_carries_all_modules_recipes_and_the_licence(wheel):
    expected = {str(p.relative_to(ROOT)) for p in (ROOT / "rllib_llm").rglob("*.py")}
    recipes = (ROOT / "tuned_examples").rglob("*.yaml")
    expected |= {f"rllib_llm/{p.relative_to(ROOT)}" for p in recipes}
    expected |= {
        "rllib_llm/py.typed",
        "rllib_llm/transcripts/transcripts.schema.json",
    }
    page = (ROOT / "rllib_llm" / "viewer" / "page").iterdir()
    expected |= {f"rllib_llm/{p.relative_to(ROOT / 'rllib_llm')}" for p in page}
    names = set(names_in(wheel))
    assert expected <= names
    assert any(name.endswith("LICENSE") for name in names)
    assert not any("__pycache__" in name for name in names)


@pytest.fixture(scope="module")
def metadata(wheel):
    """Return the wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        text = archive.read(path).decode("utf-8")
    return email.message_from_string(text, policy=email.policy.default)


def test_the_wheel_says_whose_it_is_and_where_to_read_on(metadata):
    assert metadata["Author"] and metadata["Keywords"]
    assert metadata["License-Expression"] == "Apache-2.0 AND CC-BY-4.0"
    labels = {url.split(",")[0] for url in metadata.get_all("Project-URL")}
    assert {"Homepage", "Documentation", "Changes", "Issues"} <= labels
    claimed = {
        c.rsplit(" ", 1)[1]
        for c in metadata.get_all("Classifier")
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", c)
    }
    assert claimed == {"3.11", "3.12", "3.13"}
    assert metadata["Requires-Python"] == f">={min(claimed)}"


def test_links_of_the_readme_work_on_a_package_index(metadata):
    """Each leads into the published sources, to a file that is there."""
    links = re.findall(r"\]\(([^)\s]+)\)", metadata.get_payload())
    assert 20 < len(links) <= 40
    into = rf"https://[^/]+/[^/]+/rllib_llm/(blob|raw)/v{VERSION}/([^#]+)"
    for link in links:
        found = re.match(into, link)
        if found is None:
            assert link.startswith(("https://", "#")), link
            continue
        assert (ROOT / found[2]).exists(), link
        assert (found[1] == "raw") == found[2].endswith(".png"), link


def test_recipes_are_found_by_name_in_an_installed_wheel(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "from rllib_llm.recipes import names; print(names.find_recipe(%r))"
    found = subprocess.run(
        [sys.executable, "-c", code % "frozen_lake_ppo"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert found.stdout.startswith(str(tmp_path))


def test_importing_the_package_is_light():
    code = (
        "import sys, rllib_llm, rllib_llm.recipes, rllib_llm.cli.main\n"
        "heavy = {'torch', 'ray', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_every_exported_name_exists():
    import rllib_llm

    for name in rllib_llm.__all__:
        assert getattr(rllib_llm, name) is not None


def test_code_never_imports_the_top_level_links():
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            tops = {name.split(".")[0] for name in names}
            assert not tops & {"algorithms", "envs", "tuned_examples"}, path


def test_modules_import_scipy_and_scikit_learn_on_demand():
    # They take a second of each process's start.
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            tops = {name.split(".")[0] for name in names}
            late = tops & {"scipy", "sklearn"}
            assert not late or "rllib_llm" not in path.parts, path


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_readable(path):
    text = path.read_text()
    assert text.count("\n") <= MOST_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            doc = ast.get_docstring(node, clean=False)
            length = node.end_lineno - node.lineno + 1
            length -= doc.count("\n") + 1 if doc else 0
            assert length <= MOST_FUNCTION_LINES, node.name


def test_constraints_pin_every_dependency_of_ours():
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    }
    tree = ast.parse((ROOT / "setup.py").read_text())
    call = next(
        n for n in ast.walk(tree) if isinstance(n, ast.Call) and n.func.id == "setup"
    )
    (required,) = (k.value for k in call.keywords if k.arg == "install_requires")
    for requirement in ast.literal_eval(required):
        name = requirement.split("[")[0].split(">")[0].split("<")[0].strip()
        assert name.lower().replace("_", "-") in pinned, name
