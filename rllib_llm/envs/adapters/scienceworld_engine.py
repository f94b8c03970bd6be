"""ScienceWorld's simulator: one Java process for all environments of a process."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import weakref
from typing import Any

from rllib_llm.errors import ConfigError, MissingExtraError

# By default Java takes a fourth of the machine's memory, and identity hashes are
# random: the order of things in lists, and so the meaning of ambiguous names, would
# differ from run to run. With constant hashes it is the order of insertion.
_JAVA_OPTIONS = (
    *("-Xmx2g", "-XX:+UseSerialGC"),
    *("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2"),
)
_PATIENCE_S = 10.0
# Reentrant, because the garbage collector may finalise environments while it is held.
_LOCK = threading.RLock()
_RUNNING: list[Simulator] = []


class Simulator:
    """A Java process that runs ScienceWorld.

    It ends when the last environment is closed or collected, and at the latest with
    this process, because it waits for the end of its standard input.
    """

    def __init__(self) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
        from scienceworld.constants import BASEPATH, JAR_PATH

        try:
            port, self.process = launch_gateway(
                classpath=JAR_PATH,
                die_on_exit=True,
                cwd=BASEPATH,
                javaopts=list(_JAVA_OPTIONS),
                return_proc=True,
            )
        except FileNotFoundError as error:
            raise ConfigError(
                "ScienceWorld runs in Java, but PATH has no program 'java'. Install a "
                "Java runtime, 8 or newer, e.g. default-jre-headless."
            ) from error
        parameters = GatewayParameters(port=port, auto_field=True)
        self._gateway = JavaGateway(gateway_parameters=parameters)
        self.users = 0

    def world(self) -> Any:
        """Return a new simulator, independent of all others."""
        return self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()

    def stop(self) -> None:
        """Stop the process and wait for its end."""
        self._gateway.shutdown()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Lease:
    """An environment's share of the Java process, which starts with the first one."""

    def __init__(self) -> None:
        with _LOCK:
            if not _RUNNING or _RUNNING[0].process.poll() is not None:
                _RUNNING[:] = [Simulator()]
            _RUNNING[0].users += 1
            simulator = _RUNNING[0]
        self.close = weakref.finalize(self, _give_back, simulator)
        self.world = simulator.world()


def import_scienceworld() -> Any:
    """Import ScienceWorld.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        import scienceworld
    except ModuleNotFoundError as error:
        if error.name not in ("scienceworld", "py4j"):
            raise
        raise MissingExtraError.for_extra("scienceworld", "scienceworld") from error
    return scienceworld


def _give_back(simulator: Simulator) -> None:
    with _LOCK:
        simulator.users -= 1
        if simulator.users == 0:
            simulator.stop()
            if simulator in _RUNNING:
                _RUNNING.clear()
