"""Fixtures of the command-line tests."""

from __future__ import annotations

import logging
import os

import pytest

from rllib_llm.cli.main import main

LOGGERS = ("ray", "ray.rllib", "ray.tune", "ray.train", "transformers")


@pytest.fixture(autouse=True)
def _leave_the_process_as_it_was():
    """Restore the environment and log levels that a command changes."""
    environment = dict(os.environ)
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    yield
    os.environ.clear()
    os.environ.update(environment)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def call(capsys):
    """Run the command; return its exit status, stdout and stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return exit_.value.code or 0, out, err

    return run
