"""Programs of episodes: functions in threads, and command lines as processes."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import tempfile
import threading
import traceback
from collections.abc import Callable
from typing import IO, Any

from rllib_llm.envs.agent_programs.session import ProgramEnd
from rllib_llm.errors import ConfigError
from rllib_llm.imports import import_object

logger = logging.getLogger("rllib_llm")

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_MOST_OUTPUT = 2**20  # bytes that are read of a process's output
_MOST_SHOWN = 2_000  # characters of an error in a message


@dataclasses.dataclass(frozen=True)
class ProgramEndpoint:
    """Address of the endpoint for one episode.

    Attributes:
        base_url: For the clients of OpenAI's API.
        api_key: Key that names the episode.
        models: Names of the policies.
    """

    base_url: str
    api_key: str
    models: tuple[str, ...]


Report = Callable[[ProgramEnd], None]


class FunctionProgram:
    """A function that runs in a daemon thread, once per episode.

    Args:
        function: Called as ``function(task, endpoint)``; may be asynchronous.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def start(self, task: Any, endpoint: ProgramEndpoint, report: Report) -> None:
        """Start the program; ``report`` is called with its end."""
        threading.Thread(
            target=self._run, args=(task, endpoint, report), daemon=True
        ).start()

    def stop(self) -> None:
        """Do nothing: the endpoint refuses its requests, which ends the function."""

    def _run(self, task: Any, endpoint: ProgramEndpoint, report: Report) -> None:
        try:
            result = self._function(task, endpoint)
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
        # BaseException: sys.exit() must not end the thread without a report.
        except BaseException as error:
            logger.debug("A program failed", exc_info=error)
            report(ProgramEnd(error=f"The program raised {self._described(error)}"))
            return
        report(ProgramEnd(result))

    def _described(self, error: BaseException) -> str:
        """Return type, message and the program's own line, not that of a library."""
        file = inspect.getsourcefile(inspect.unwrap(self._function))
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file]
        text = f"{type(error).__name__}: {error}"[:_MOST_SHOWN]
        return f"{text} ({file}:{lines[-1]})" if lines else text


class CommandProgram:
    """A command line that runs as a process, once per episode.

    It reads the task as JSON from its standard input, and the endpoint from the
    environment variables OPENAI_BASE_URL, OPENAI_API_KEY and RLLIB_LLM_MODELS. Its
    result is the last line of its standard output, as JSON if it is JSON.

    Args:
        command: The program and its arguments.
    """

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, task: Any, endpoint: ProgramEndpoint, report: Report) -> None:
        """Start the process; ``report`` is called with its end.

        Raises:
            ConfigError: If the program does not exist, or the task is not JSON.
        """
        try:
            text = json.dumps(task).encode()
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"The task {task!r} is not JSON: {error}. A command line reads its "
                "task as JSON."
            ) from error
        # Files and not pipes: a full pipe would stop the program. _wait() closes them.
        output = tempfile.TemporaryFile()  # noqa: SIM115
        errors = tempfile.TemporaryFile()  # noqa: SIM115
        variables = {
            "OPENAI_BASE_URL": endpoint.base_url,
            "OPENAI_API_KEY": endpoint.api_key,
            "RLLIB_LLM_MODELS": ",".join(endpoint.models),
        }
        with tempfile.TemporaryFile() as given:
            given.write(text)
            given.seek(0)
            try:
                process = subprocess.Popen(
                    self._command,
                    stdin=given,
                    stdout=output,
                    stderr=errors,
                    env={**os.environ, **variables},
                    start_new_session=True,  # so that stop() reaches its children
                )
            except OSError as error:
                raise ConfigError(
                    f"program={self._command!r} cannot be started: {error}. Give "
                    "'module:function', or a command line."
                ) from error
        self._process = process
        threading.Thread(
            target=_wait, args=(process, output, errors, report), daemon=True
        ).start()

    def stop(self) -> None:
        """Kill the process and its children."""
        process, self._process = self._process, None
        # After its end the number may belong to another process.
        if process is None or process.poll() is not None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # it has ended meanwhile
        process.wait()


def make_program(program: str | list[str]) -> FunctionProgram | CommandProgram:
    """Return the program that ``env_config`` names.

    Raises:
        ConfigError: If the function does not exist.
    """
    if isinstance(program, str) and _FUNCTION.fullmatch(program):
        function = import_object(program, "env_config.program")
        if not callable(function):
            raise ConfigError(
                f"program={program!r} is {type(function).__name__}; it must be a "
                "function of (task, endpoint)."
            )
        return FunctionProgram(function)
    command = shlex.split(program) if isinstance(program, str) else list(program)
    if not command or not all(isinstance(part, str) for part in command):
        raise ConfigError(
            f"program={program!r} must be 'module:function', a command line, or a list "
            "of the command and its arguments."
        )
    return CommandProgram(command)


def _wait(
    process: subprocess.Popen[bytes],
    output: IO[bytes],
    errors: IO[bytes],
    report: Report,
) -> None:
    status = process.wait()
    with output, errors:
        if status:
            shown = _tail(errors).strip()[-_MOST_SHOWN:]
            kind = f"signal {-status}" if status < 0 else f"status {status}"
            report(ProgramEnd(error=f"The program ended with {kind}: {shown}"))
            return
        lines = _tail(output).strip().splitlines()
    last = lines[-1] if lines else ""
    try:
        report(ProgramEnd(json.loads(last)))
    except ValueError:
        report(ProgramEnd(last))


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _MOST_OUTPUT))
    return file.read().decode(errors="replace")
