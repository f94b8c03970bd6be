"""The fork server: a small process that runs each program in a child process.

It starts before the first program and holds nothing but the interpreter and the
modules that programs may import. Neither programs nor their output pass through it, so
that no child inherits data of another. A call is one message over the server's socket:
a header and the descriptors of the call's own socket, the program, its standard input,
output and error.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from rllib_llm.sandbox import program
from rllib_llm.sandbox.jail import Jail, Limits

_NAMES = """
abc array ast base64 binascii bisect calendar cmath collections collections.abc
contextlib copy csv dataclasses datetime decimal difflib enum fractions functools
hashlib heapq html io itertools json keyword math numbers operator pprint queue
random re statistics string struct textwrap time traceback types typing
unicodedata zlib encodings.ascii encodings.hex_codec encodings.idna encodings.latin_1
encodings.raw_unicode_escape encodings.unicode_escape encodings.utf_16
encodings.utf_8_sig
"""
MODULES = tuple(_NAMES.split())
_NUM_FDS = 5


@dataclasses.dataclass
class _Call:
    """A running child.

    Attributes:
        pid: Process id of the child.
        channel: Socket of the call; if the caller closes it, the child is killed.
        exit_fd: Descriptor that becomes readable when the child ends.
        began: Start, in seconds of ``time.monotonic``.
        deadline: Time at which the child is killed, in the same clock.
        timed_out: Whether the deadline was exceeded.
    """

    pid: int
    channel: socket.socket
    exit_fd: int
    began: float
    deadline: float
    timed_out: bool = False


class Server:
    """Serves calls until the caller closes its end of the socket.

    Args:
        host: Socket on which calls arrive.
    """

    def __init__(self, host: socket.socket):
        self._host = host
        self._jail = Jail()
        self._calls: list[_Call] = []
        self._poller = select.poll()
        self._poller.register(host.fileno(), select.POLLIN)
        self._pid = os.getpid()

    def serve(self) -> None:
        """Serve until the caller has gone, then kill the remaining children."""
        # Keeps the collector from touching, and so copying, pages shared with children.
        gc.freeze()
        while True:
            ready = {fd for fd, _ in self._poller.poll(self._patience_ms())}
            if self._host.fileno() in ready and not self._begin():
                break
            for call in list(self._calls):
                if call.exit_fd in ready:
                    self._finish(call)
                elif call.channel.fileno() in ready:
                    _kill(call)
                    self._poller.unregister(call.channel)
                elif time.monotonic() > call.deadline and not call.timed_out:
                    call.timed_out = True
                    _kill(call)
        for call in self._calls:
            _kill(call)

    def _patience_ms(self) -> int | None:
        """Return the time until the next deadline, in ms; None without a child."""
        deadlines = [c.deadline for c in self._calls if not c.timed_out]
        if not deadlines:
            return None
        return max(0, int((min(deadlines) - time.monotonic()) * 1000) + 1)

    def _begin(self) -> bool:
        """Start the call that arrived; return False if the caller has gone."""
        message, fds = _receive(self._host)
        if not message:
            return False
        header = json.loads(message)
        channel = socket.socket(fileno=fds[0])
        began = time.monotonic()
        try:
            pid = os.fork()
            if pid == 0:
                self._become_program(header, channel, fds[1:])
        except OSError as error:  # out of memory, or too many processes
            _send(channel, {"failed": repr(error)})
            channel.close()
            return True
        finally:
            for fd in fds[1:]:
                os.close(fd)
        exit_fd = os.pidfd_open(pid)
        call = _Call(pid, channel, exit_fd, began, began + header["timeout_s"])
        self._calls.append(call)
        self._poller.register(exit_fd, select.POLLIN)
        self._poller.register(channel, 0)  # poll always reports hang-ups
        return True

    def _become_program(
        self, header: dict[str, float], channel: socket.socket, fds: list[int]
    ) -> None:
        """Enter the jail and run the program, in the child. Does not return."""
        try:
            source, inputs = json.loads(_read_all(fds[0]))
            for number, fd in enumerate(fds[1:]):
                os.dup2(fd, number)
            program.open_streams()
            limits = Limits(int(header["cpu_s"]), int(header["memory_bytes"]))
            self._jail.enter(limits, self._pid, kept=channel.fileno())
            channel.close()  # otherwise the program could forge a failure report
        except BaseException as error:  # the child must not return to the server loop
            _send(channel, {"failed": repr(error)})
            os._exit(program.ERROR)
        program.run(source, inputs)

    def _finish(self, call: _Call) -> None:
        _, status, usage = os.wait4(call.pid, 0)
        report = {
            "exit": os.waitstatus_to_exitcode(status),
            "timed_out": call.timed_out,
            "seconds": time.monotonic() - call.began,
            "cpu_s": usage.ru_utime + usage.ru_stime,
        }
        self._calls.remove(call)
        self._poller.unregister(call.exit_fd)
        os.close(call.exit_fd)
        with contextlib.suppress(KeyError):  # the caller has closed the channel
            self._poller.unregister(call.channel)
        _send(call.channel, report)
        call.channel.close()


def _kill(call: _Call) -> None:
    # The child has not been reaped, so no other process can have its id.
    os.kill(call.pid, signal.SIGKILL)


def _send(channel: socket.socket, report: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the caller has closed the channel
        channel.send(json.dumps(report).encode())


def _receive(host: socket.socket) -> tuple[bytes, list[int]]:
    fds = array.array("i")
    room = socket.CMSG_LEN(_NUM_FDS * fds.itemsize)
    message, ancillary, _, _ = host.recvmsg(4096, room)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data)
    return message, list(fds)


def _read_all(fd: int) -> bytes:
    with open(fd, "rb", closefd=False) as file:
        return file.read()


def main() -> None:
    """Serve over the socket whose descriptor the command line gives."""
    host = socket.socket(fileno=int(sys.argv[1]))
    for name in MODULES:
        importlib.import_module(name)
    time.tzset()
    sys.path.clear()  # programs can import the loaded modules only
    os.environ.clear()
    server = Server(host)
    host.send(b"ready")
    server.serve()
