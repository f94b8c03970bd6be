"""A browser in a process of its own, killed and replaced when it hangs or dies."""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from rllib_llm.envs.browser.actions import PageAction
from rllib_llm.envs.browser.chromium import (
    Chromium,
    environ_of_browser,
    find_program,
)
from rllib_llm.envs.child_process import ChildProcess, EnvProcessError
from rllib_llm.errors import ConfigError, MissingExtraError

BINARIES = ("chromium", "chromium-browser", "google-chrome")
DRIVERS = ("chromedriver",)
EXTRA = "browser"
TIMEOUT_S = 60.0
# A browser takes 300 to 460 MiB with its driver (docs/environments/miniwob.md).
LEAST_FREE_MIB = 500
_MEMORY = Path("/proc/meminfo")


class Browser:
    """Calls of a :class:`~rllib_llm.envs.browser.chromium.Chromium`, with time limits.

    The process with driver and browser starts at the first call. After a call that
    failed or took too long, the next call starts another one.

    Attributes:
        timeout_s: Limit of each call, in seconds of wall time; the first includes the
            start of the browser.

    Args:
        width: Width of the window in pixels.
        height: Least height of the page in pixels.

    Raises:
        MissingExtraError: If Selenium is not installed.
    """

    def __init__(self, width: int = 500, height: int = 300):
        require_selenium()
        self.timeout_s = TIMEOUT_S
        self._size = (width, height)
        self._process: ChildProcess | None = None
        self._folder = ""
        self._finalizer: weakref.finalize[..., Any] | None = None

    @property
    def pid(self) -> int | None:
        """Group of the browser's processes; None while it does not run."""
        return None if self._process is None else self._process.pid

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the browser.

        Raises:
            ConfigError: If Chromium or chromedriver is not installed, or the memory is
                too little for another browser.
            EnvProcessError: If the browser failed or did not answer in time. It is
                killed then, and what the page showed is lost.
        """
        process = self._process or self._start()
        try:
            return process.call(method, arguments, timeout_s=self.timeout_s)
        except EnvProcessError:
            self.kill()
            raise
        # Selenium's errors, of many classes: the driver and its browser disagree, the
        # page has crashed, a script of the page has failed.
        except Exception as error:
            self.kill()
            text = str(error).partition("\nStacktrace:")[0]  # of the driver's code
            raise EnvProcessError(
                f"The browser failed in {method}() and was ended: {text}"
            ) from error

    def act(self, action: PageAction) -> None:
        """Apply an action that the page allows to the elements last listed.

        Raises:
            EnvProcessError: See :meth:`call`.
        """
        number = action.number
        if action.place is not None:
            self.call("point", *action.place, True)
        elif action.kind == "click":
            self.call("run", "rllibPage.click(arguments[0]);", number)
        elif action.kind == "select":
            script = "rllibPage.select(arguments[0], arguments[1]);"
            self.call("run", script, number, action.option)
        elif action.kind == "press":
            self.call("press", action.text)
        else:
            if number is not None:
                self.call("run", "rllibPage.focus(arguments[0]);", number)
            self.call("type", action.text)

    def close(self) -> None:
        """End the browser."""
        process, self._process = self._process, None
        if process is not None:
            process.close()
        self._remove_folder()

    def kill(self) -> None:
        """Kill the browser, e.g. because it hangs; the next call starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
        self._remove_folder()

    def _start(self) -> ChildProcess:
        binary = _require_program("Chromium", BINARIES)
        driver = _require_program("chromedriver", DRIVERS)
        _require_memory()
        self._folder = tempfile.mkdtemp(prefix="rllib_llm_browser_")
        maker = functools.partial(Chromium, binary, driver, self._folder, *self._size)
        environ = environ_of_browser(os.environ, self._folder)
        self._process = ChildProcess(
            pickle.dumps(maker), "The browser's process", environ
        )
        # A collected Popen keeps its pipes, so that the process would go on.
        self._finalizer = weakref.finalize(self, _end, self._process, self._folder)
        return self._process

    def _remove_folder(self) -> None:
        if self._finalizer is not None:
            self._finalizer.detach()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = ""


def _end(process: ChildProcess, folder: str) -> None:
    process.kill()
    shutil.rmtree(folder, ignore_errors=True)


def require_selenium() -> None:
    """Check that Selenium is installed; only the browser's process imports it.

    Raises:
        MissingExtraError: If it is not.
    """
    try:
        import selenium  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "selenium":
            raise
        raise MissingExtraError.for_extra("selenium", EXTRA) from error


def _require_memory() -> None:
    """Refuse a browser that the machine has no memory for, before it swaps or kills."""
    if not _MEMORY.exists():
        return
    lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) // 1024
    if free < LEAST_FREE_MIB:
        raise ConfigError(
            f"{free} MiB of memory are available, and another browser needs about "
            f"{LEAST_FREE_MIB}: each environment has its own. Lower "
            "env_runners.num_envs_per_env_runner."
        )


def _require_program(title: str, names: tuple[str, ...]) -> str:
    path = find_program(names)
    if path is None:
        raise ConfigError(
            f"{title} is needed, but PATH has none of the programs {', '.join(names)}. "
            "Install Chromium with its driver, e.g. apt-get install chromium-driver."
        )
    return path
