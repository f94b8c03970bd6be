"""Invalid recipes on the command line: one paragraph and status 1."""

import pytest

from rllib_llm.cli.main import main

BAD = (
    ("a: &b [*b]", [], "The alias *b (line 1) contains itself"),
    ("algo: 3", [], "algo: 3 must be one name"),
    ("", ["training.lr=.nan"], "A recipe must be a mapping"),
)


def failure(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 1
    return capsys.readouterr().err


@pytest.mark.parametrize(("text", "overrides", "message"), BAD)
def test_a_bad_recipe_ends_in_one_paragraph(capsys, tmp_path, text, overrides, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    shown = failure(capsys, ["train", str(path), *overrides, "--dry-run"])
    assert message in shown and "Traceback" not in shown
    assert len(shown.strip().splitlines()) == 1


def test_verbose_shows_the_traceback(capsys):
    arguments = ["train", "frozen_lake_ppo", "training.lr=.nan", "--dry-run"]
    plain = failure(capsys, arguments)
    assert "training.lr=nan must be a number >= 0" in plain
    assert "Traceback" not in plain
    assert "Traceback" in failure(capsys, [*arguments, "--verbose"])


def test_a_huge_value_is_not_printed_whole(capsys):
    value = "x" * 150_000
    for override in (f"training.{value}=1", f"algo={value}", f"env={value}", value):
        assert len(failure(capsys, ["train", "frozen_lake_ppo", override])) < 3000
