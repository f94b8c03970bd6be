"""A target environment for hostile programs, observed from outside the sandbox."""

import contextlib
import os
import socket
import sysconfig
import tempfile
import threading
from pathlib import Path

import pytest
from hostile import Scene

from rllib_llm.sandbox import Sandbox
from rllib_llm.sandbox.sandbox import _runner

CANARY = "sing-4f1c0b"


@pytest.fixture(scope="session")
def sandbox():
    """A sandbox with short limits."""
    with Sandbox(timeout_s=5.0) as made:
        yield made


class Witness:
    """Detects from outside whether a program escaped.

    Args:
        scene: The targets under attack.
        received: Everything received on the scene's sockets.
    """

    def __init__(self, scene, received):
        self.scene, self.received = scene, received
        self.starts = _runner("fork_server").starts

    def children(self):
        """Return the child processes of the server."""
        found = set()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError, IndexError):
                with open(f"/proc/{pid}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
                if parent == self.scene.server:
                    found.add(int(pid))
        return found

    def check(self):
        """Fail if anything escaped, or if the server has been replaced."""
        scene = self.scene
        with open(scene.canary) as file:
            assert file.read() == CANARY
        assert os.stat(scene.canary).st_mode & 0o777 == 0o666
        assert sorted(os.listdir(scene.folder)) == ["canary", "link", "socket"]
        assert not os.path.exists("/dev/shm/trace")
        assert not os.path.exists("/dev/shm/sandbox")
        assert not os.path.exists("/tmp/sandbox_link")
        assert self.received == []
        assert self.children() == set()
        assert _runner("fork_server").pid == scene.server
        assert _runner("fork_server").starts == self.starts
        assert os.getpgid(scene.server) == scene.server  # raises if it is dead


@pytest.fixture(scope="session")
def witness(sandbox):
    """Set up canaries and listeners, and yield the observer."""
    with tempfile.TemporaryDirectory() as folder:
        yield _witness(sandbox, Path(folder))


def _witness(sandbox, folder):
    folder.chmod(0o777)  # only the sandbox may keep programs out of it
    (folder / "canary").write_text(CANARY)
    (folder / "canary").chmod(0o666)
    (folder / "link").symlink_to(folder / "canary")
    received = []
    tcp, udp, unix, abstract = _listeners(folder)
    for listener in (tcp, unix, abstract):
        _watch(listener.accept, received)
    _watch(lambda: udp.recv(9), received)
    os.chmod(folder / "socket", 0o777)
    sandbox.run("1")
    scene = Scene(
        canary=str(folder / "canary"),
        link=str(folder / "link"),
        folder=str(folder),
        port=tcp.getsockname()[1],
        socket=str(folder / "socket"),
        abstract=abstract.getsockname()[1:].decode(),
        server=_runner("fork_server").pid,
        trainer=os.getpid(),
        packages=sysconfig.get_paths()["purelib"],
    )
    return Witness(scene, received)


def _listeners(folder):
    tcp, udp = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
    tcp.bind(("127.0.0.1", 0))
    udp.bind(tcp.getsockname())
    unix, abstract = (socket.socket(socket.AF_UNIX) for _ in range(2))
    unix.bind(str(folder / "socket"))
    abstract.bind(f"\0sandbox-{os.getpid()}")
    for listener in (tcp, unix, abstract):
        listener.listen()
    return tcp, udp, unix, abstract


def _watch(wait, received):
    def listen():
        while True:
            received.append(wait())

    threading.Thread(target=listen, daemon=True).start()
