"""Client of the fork server: one server per process, started on demand."""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rllib_llm.sandbox.calls import TAIL_CHARS, Request, SandboxError, SandboxResult
from rllib_llm.sandbox.program import MEMORY, OK

_ROOT = Path(__file__).resolve().parents[2]
_START = (
    "import sys; sys.path.insert(0, {root!r})\n"
    "from rllib_llm.sandbox import server; server.main()"
)
_START_S, _GRACE_S = 60.0, 30.0  # generous: a loaded machine is slow, not broken
_CHUNK = 1 << 16


class _Failed(Exception):
    """The sandbox could not run a program to its end; the program is not at fault."""


class _ServerLost(_Failed):
    """The server died or does not answer."""


class ForkServer:
    """Starts the server, forwards calls to it and restarts it if it dies.

    Threads may call concurrently. At most as many programs run at once as there are
    cores (at least two); further calls wait, and their time limits start later.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(max(2, os.cpu_count() or 1))
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """Process id of the server, None if it is not running."""
        return self._process.pid if self._process else None

    def run(self, request: Request) -> SandboxResult:
        """Run a program; if the server fails, retry once.

        Raises:
            SandboxError: If the retry fails too.
        """
        with self._slots:
            for is_last in (False, True):
                server = self._started()
                try:
                    return _call(server, request)
                except _Failed as error:
                    if isinstance(error, _ServerLost):
                        self._stop(server)
                    if is_last:
                        raise SandboxError(
                            f"The sandbox failed twice: {error}. The program is not at "
                            "fault. Check that the machine has free memory and that "
                            "no other process kills the sandbox's processes."
                        ) from error
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Stop the server and its programs; the next call starts a new server."""
        if self._socket is not None:
            self._stop(self._socket)

    def _started(self) -> socket.socket:
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._forget()
            return self._start() if self._socket is None else self._socket

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fd = theirs.fileno()
            # -S keeps installed packages out of the programs' reach. A fixed hash
            # seed makes the order of sets, and so the output, reproducible.
            start = _START.format(root=str(_ROOT))
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-S", "-c", start, str(fd)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[fd],
                env={"PYTHONHASHSEED": "0", "TZ": "UTC"},
                cwd="/",
                start_new_session=True,  # Ctrl-C must not reach the server
            )
        self._socket = ours
        self.starts += 1
        if not select.select([ours], [], [], _START_S)[0] or ours.recv(16) != b"ready":
            self._forget()
            raise SandboxError(
                "The sandbox's server did not start; see its error above. Call "
                "rllib_llm.sandbox.probe() for what this platform supports."
            )
        return ours

    def _stop(self, server: socket.socket) -> None:
        with self._lock:
            if self._socket is server:  # another thread may have replaced it
                self._forget()

    def _forget(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._socket = self._process = None


def _call(server: socket.socket, request: Request) -> SandboxResult:
    """Send one call, read the program's output and return its result."""
    with contextlib.ExitStack() as kept, contextlib.ExitStack() as passed:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept.callback(ours.close)
        passed.callback(theirs.close)
        sent, outputs = [theirs.fileno()], []
        # Sealed memory files: the program reads its source and input from them and
        # cannot write to them. Pipes could fill up and block the sender.
        program = json.dumps([request.code, request.inputs])
        for text in (program, request.stdin):
            sent.append(_sealed(text.encode("utf-8", "replace")))
            passed.callback(os.close, sent[-1])
        for _ in ("output", "error"):
            read_end, write_end = os.pipe()
            kept.callback(os.close, read_end)
            passed.callback(os.close, write_end)
            outputs.append(read_end)
            sent.append(write_end)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", sent))
        try:
            server.sendmsg([_header(request)], [rights])
        except OSError as error:
            raise _ServerLost(f"its server cannot be reached ({error})") from error
        # The write ends must close here, otherwise reading the outputs never ends.
        passed.close()
        return _follow(ours, outputs, request)


def _header(request: Request) -> bytes:
    report = {
        "timeout_s": request.timeout_s,
        "cpu_s": math.ceil(request.timeout_s),
        "memory_bytes": request.memory_mb << 20,
    }
    return json.dumps(report).encode()


def _follow(
    channel: socket.socket, outputs: list[int], request: Request
) -> SandboxResult:
    """Read until the program ends or exceeds the output limit."""
    began = time.monotonic()
    poller = select.poll()
    written: dict[int, bytearray] = {fd: bytearray() for fd in outputs}
    for fd in (*outputs, channel.fileno()):
        poller.register(fd, select.POLLIN)
    is_open, report = set(outputs), None
    while is_open or report is None:
        patience = request.timeout_s + _GRACE_S - (time.monotonic() - began)
        events = poller.poll(max(0.0, patience) * 1000)
        if not events:
            raise _ServerLost("its server does not answer")
        for fd, _ in events:
            if fd == channel.fileno():
                report = _report(channel)
                poller.unregister(fd)
            elif chunk := os.read(fd, _CHUNK):
                written[fd] += chunk
            else:
                is_open.discard(fd)
                poller.unregister(fd)
        if sum(map(len, written.values())) > request.max_output:
            # The caller closes the channel, and the server then kills the program.
            texts = _texts(written.values(), request.max_output)
            return SandboxResult(*texts, "output", time.monotonic() - began)
    texts = _texts(written.values(), request.max_output)
    return SandboxResult(*texts, _status(report, request), report["seconds"])


def _report(channel: socket.socket) -> dict[str, Any]:
    try:
        message = channel.recv(4096)
        # Programs may leave unread data behind, which resets the socket.
    except ConnectionResetError:
        message = b""
    if not message:
        raise _ServerLost("its server died")
    report = json.loads(message)
    if "failed" in report:
        raise _Failed(f"the program could not be isolated: {report['failed']}")
    return report


def _status(report: dict[str, Any], request: Request) -> str:
    """Return the status of a program from the server's report.

    Raises:
        _Failed: If the program was killed from outside. Programs cannot send signals,
            so SIGKILL comes from the out-of-memory killer or from a person.
    """
    code = report["exit"]
    # The kernel sends SIGXCPU at the CPU limit, and SIGKILL one second later.
    used_up = report["cpu_s"] >= math.ceil(request.timeout_s)
    if report["timed_out"] or code == -signal.SIGXCPU or (code < 0 and used_up):
        return "timeout"
    if code == -signal.SIGKILL:
        raise _Failed("something killed the program from outside")
    if code < 0:
        return "killed"
    return {OK: "ok", MEMORY: "memory"}.get(code, "error")


def _texts(written: Any, max_output: int) -> tuple[str, str]:
    out, error = (bytes(w[:max_output]).decode("utf-8", "replace") for w in written)
    return out, error[-TAIL_CHARS:]


def _sealed(content: bytes) -> int:
    """Return a descriptor of a read-only memory file with this content."""
    fd = os.memfd_create("sandbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)
    return fd
