"""ScienceWorld's simulator: a Java process for the environments of a process.

The simulator keeps its simplifications in a global list, which every start of an
episode fills again and every step reads. So environments share a Java process only if
they have the same simplifications, and one call runs in it at a time.
"""

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
_RUNNING: dict[str, Simulator] = {}  # by simplifications


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
        self._calls = threading.Lock()
        self.users = 0

    def world(self) -> World:
        """Return a new world, independent of all others."""
        interface = self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface
        with self._calls:
            return World(interface(), self._calls)

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


class World:
    """ScienceWorld's interface, whose methods wait for their turn.

    Args:
        interface: Python's interface of the simulator.
        calls: Held during every call.
    """

    def __init__(self, interface: Any, calls: threading.Lock):
        self._interface, self._calls = interface, calls

    def __getattr__(self, name: str) -> Any:
        """Return a method of the interface."""
        method = getattr(self._interface, name)

        def call(*arguments: Any) -> Any:
            with self._calls:
                return method(*arguments)

        return call


class Lease:
    """An environment's share of a Java process, which starts with the first one.

    Args:
        simplifications: Those of the environment, in the simulator's format.
    """

    def __init__(self, simplifications: str) -> None:
        self.simplifications = simplifications
        with _LOCK:
            simulator = _RUNNING.get(simplifications)
            if simulator is None or simulator.process.poll() is not None:
                simulator = _RUNNING[simplifications] = Simulator()
            simulator.users += 1
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
            for names in [n for n, each in _RUNNING.items() if each is simulator]:
                del _RUNNING[names]
