"""Files for a public repository: they can be read, and name what exists."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from rllib_llm.version import __version__

ROOT = Path(__file__).parents[1]
YAML = sorted([*ROOT.glob(".github/**/*.yml"), ROOT / ".pre-commit-config.yaml"])
TEXTS = ("SECURITY.md", "CODE_OF_CONDUCT.md", "llms.txt", "CITATION.cff")


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_yaml_is_valid(path):
    assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)


def test_workflows_run_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    commands = []
    for path in ROOT.glob(".github/workflows/*.yml"):
        for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values():
            assert job["runs-on"]
            commands += [step["run"] for step in job["steps"] if "run" in step]
    made = [word for c in commands if c.startswith("make ") for word in c.split()[1:]]
    assert {word for word in made if "=" not in word} <= targets
    assert {"lint", "docs", "test-fast", "sdist", "wheel"} <= set(made)
    assert ".ci/run" in commands and {"test-others"} <= set(made)


def test_tested_versions_of_python_are_those_claimed():
    checks = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text())
    tested = checks["jobs"]["fast"]["strategy"]["matrix"]["python"]
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    claimed = re.findall(r"Python :: (3\.\d+)", setup)
    assert tested == claimed


def test_versions_and_addresses_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == __version__
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    address = re.search(r'^REPOSITORY = "(.*)"', setup, re.MULTILINE)[1]
    assert citation["repository-code"] == address
    config = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/config.yml").read_text())
    private = config["contact_links"][0]["url"]
    assert private.startswith(address)
    conduct = (ROOT / "CODE_OF_CONDUCT.md").read_text(encoding="utf-8")
    assert f"]({private})" in conduct.split("## Contact")[1]


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_to_files(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target


def test_pre_commit_runs_what_lint_runs():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]
    entries = " ".join(hook["entry"] for hook in hooks["hooks"])
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for tool in ("ruff check", "ruff format", "mypy", "scripts/lint_language.py"):
        assert tool in entries
        assert tool in makefile


def test_the_container_has_what_its_commands_need():
    lines = (ROOT / "Containerfile").read_text(encoding="utf-8").splitlines()
    copied = [
        w for line in lines if line.startswith("COPY") for w in line.split()[1:-1]
    ]
    assert all((ROOT / name).exists() for name in copied)
    read_by_setup = {"setup.py", "README.md", "rllib_llm", "tuned_examples"}
    assert read_by_setup | {"Makefile", "constraints.txt", "LICENSE", "NOTICE"} <= {
        *copied
    }
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]


def test_every_pattern_of_the_nightly_tests_names_a_test():
    for line in (ROOT / "tests" / "nightly.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        path, _, name = line.partition("::")
        function = re.split(r"[?*]", name)[0]
        assert function.startswith("test_"), line
        text = (ROOT / "tests" / path).read_text()
        assert f"def {function}" in text, line


def test_llms_txt_names_every_page_of_the_first_level():
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    named = set(re.findall(r"\]\((docs/[^)#]+)", text))
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/algorithms/*.md")]
    paths = {page.relative_to(ROOT).as_posix() for page in pages}
    assert paths <= named
