"""YAML values that are read, and invalid ones rejected with their line."""

import datetime

import pytest

from rllib_llm import yaml_io
from rllib_llm.errors import ConfigError, ModelError
from rllib_llm.recipes import load_recipe

RECIPE = "algo: LLMPPO\nenv: frozen_lake-v0\nstop: {training_iteration: 1}\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: &b {x: 1}\nc: {<<: *b, y: 2}", {"a": {"x": 1}, "c": {"x": 1, "y": 2}}),
        ("a: &b {x: 1}\nc: {<<: *b, x: 3}", {"a": {"x": 1}, "c": {"x": 3}}),
        (
            "a: &a {x: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: [*b, *a]}",
            {"a": {"x": 1}, "b": {"x": 2}, "c": {"x": 2}},
        ),
        ("a: 5e-5", {"a": 5e-5}),
        ("a: 2026-11-22", {"a": "2026-11-22"}),
        ("\ufeffa: 1", {"a": 1}),
    ],
)
def test_yaml_is_read(tmp_path, text, value):
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    assert yaml_io.read(path) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {x: 1, x: 2}", r"The key 'x' occurs twice \(line 1\). Keep one"),
        ("a: &x {}\nb: &y {}\nc: {<<: *x, <<: *y}", "'<<' occurs twice"),
        ("a:\n  <<: 1", "expected a mapping or list of mappings for merging"),
        ("a: &x [*x]", r"The alias \*x \(line 1\) contains itself"),
        ("? [a]\n: 1", "A key in line 1 is a collection"),
        ("[" * 5000, "nested deeper than 40"),
        ("a: !!int ''", "not valid YAML: IndexError"),
        ("a: " + "9" * 5000, "not valid YAML: ValueError: Exceeds the limit"),
        ("a: !!set {b}", "not valid YAML: .*set"),
        ("a: !!python/object/apply:os.system [ls]", "not valid YAML"),
        ("a: [1", "not valid YAML: while parsing a flow sequence"),
        ("a: \x00", "not valid YAML: .*special characters are not allowed"),
        ("x" * 300_000, "300000 characters; a recipe has at most 200000"),
        (
            "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
            + "\n".join(
                f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)
            ),
            "more than 20000 values, with aliases expanded",
        ),
    ],
)
def test_invalid_yaml_is_rejected(text, message):
    with pytest.raises(ConfigError, match=rf"(?s)my\.yaml.*{message}") as refused:
        yaml_io.parse(text, "my.yaml")
    assert len(str(refused.value)) < 1000


def test_unreadable_files_are_rejected(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_bytes(b"a: \xff\xfe")
    with pytest.raises(ConfigError, match=r"not UTF-8 text \(byte 3\). Save it as"):
        yaml_io.read(path)
    path.write_bytes(b"a" * 10**6)
    with pytest.raises(ConfigError, match="1000000 bytes.*Check the path"):
        yaml_io.read(path)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        yaml_io.read(tmp_path)


def test_dates_survive_a_dump():
    data = yaml_io.parse("a: 2026-11-22\nb: 2026-11-22T10:00:00Z", "x")
    assert yaml_io.parse(yaml_io.dump(data), "x") == data
    assert not isinstance(data["a"], datetime.date)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: ..", r"name='..' cannot name a run folder"),
        ("name: ../../x", r"name='../../x' cannot name a run folder"),
        ("name: a/b", "no '/'"),
        ("name: [a]", r"name=\['a'\] cannot name a run folder"),
        ("name: " + "x" * 101, "at most 100 characters"),
        ("expect: {return_std: {min: 2, max: 1}}", "does not admit any value"),
        ("expect: {return_std: .nan}", r"expect.return_std=nan must be a number"),
        ("tune: {num_samples: .inf}", r"tune.num_samples=inf must be a whole number"),
        ("env_config: {size: .nan}", "FrozenLake.size=nan must be a whole number"),
        ("learners: {learner_class: 'os:system'}", "must be a subclass of Learner"),
        ("language_model: {tiny: {hidden_size: 50}}", "multiple of twice"),
        ("language_model: {chat_template_kwargs: {a: .nan}}", "that JSON can hold"),
        ("alarms: {kl: {above: .nan}}", "above=nan must be a number >= 0"),
        ("training: {loss_terms: [{name: entropy, weight: .nan}]}", "weight=nan must"),
        ("language_model: {model: " + "x" * 3000 + "}", r"not a valid path \(OSError"),
        ("language_model: {model: ~nobody_here/x}", r"not a valid path \(RuntimeError"),
        ("checkpointing: 3", "checkpointing: 3 must be a mapping"),
    ],
)
def test_invalid_recipe_values_are_rejected(tmp_path, text, message):
    path = tmp_path / "x.yaml"
    path.write_text(RECIPE + text, encoding="utf-8")
    with pytest.raises((ConfigError, ModelError), match=message):
        load_recipe(path).validate()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def broken(:", "raised SyntaxError"),
        ("import sys\nsys.exit(3)", r"raised SystemExit: 3 \(.*hostile_.*:2\)"),
        ("raise KeyError('x')", r"raised KeyError: 'x' \(.*hostile_.*:1\)"),
        ("make = 1", "has no 'Make'. Did you mean 'make'"),
    ],
)
@pytest.mark.parametrize(
    "setting", ["env", "learners.learner_class", "rollouts.rewards"]
)
def test_modules_of_users_may_raise_anything(
    tmp_path, monkeypatch, code, message, setting
):
    name = f"hostile_{abs(hash((code, setting)))}"
    (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=message):
        load_recipe("frozen_lake_ppo", [f"{setting}='{name}:Make'"]).validate()


def test_unexpected_errors_become_config_errors(tmp_path, monkeypatch):
    code = "def make(config):\n    raise ZeroDivisionError('by zero')\n"
    (tmp_path / "zero_env.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"ZeroDivisionError: by zero \(.*py:2\)"):
        load_recipe("frozen_lake_ppo", ["env='zero_env:make'"]).validate()
