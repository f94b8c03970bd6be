"""The fork server: a small process that starts each program in a child of its own.

It is started before it is needed and holds nothing but the interpreter and the modules
that programs may import; neither programs nor their output ever pass through it, so
that no child inherits anything of another. A call comes as one message over the
server's socket: a header, and the descriptors of the call's own socket, the program,
its standard input, output and error.
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
        pid: Its process id.
        channel: The call's socket; the caller hangs up to have the child killed.
        exit_fd: Readable once the child has ended.
        began: When it was started, in seconds of ``time.monotonic``.
        deadline: When it is killed.
        timed_out: Whether it was.
    """

    pid: int
    channel: socket.socket
    exit_fd: int
    began: float
    deadline: float
    timed_out: bool = False


class Server:
    """Serves calls until the caller's end of its socket is closed.

    Args:
        host: The socket that calls come over.
    """

    def __init__(self, host: socket.socket):
        self._host = host
        self._jail = Jail()
        self._calls: list[_Call] = []
        self._poller = select.poll()
        self._poller.register(host.fileno(), select.POLLIN)
        self._pid = os.getpid()

    def serve(self) -> None:
        """Run until the caller is gone, then kill what still runs."""
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
        """Return how long to wait for events, until a running child is overdue."""
        deadlines = [c.deadline for c in self._calls if not c.timed_out]
        if not deadlines:
            return None
        return max(0, int((min(deadlines) - time.monotonic()) * 1000) + 1)

    def _begin(self) -> bool:
        """Start the call that has come; False if the caller is gone."""
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
        except OSError as error:  # no memory, too many processes
            _tell(channel, {"failed": repr(error)})
            channel.close()
            return True
        finally:
            for fd in fds[1:]:
                os.close(fd)
        exit_fd = os.pidfd_open(pid)
        call = _Call(pid, channel, exit_fd, began, began + header["timeout_s"])
        self._calls.append(call)
        self._poller.register(exit_fd, select.POLLIN)
        self._poller.register(channel, 0)  # hang-ups are always told
        return True

    def _become_program(
        self, header: dict[str, float], channel: socket.socket, fds: list[int]
    ) -> None:
        """In the child: put up the walls, then run the program. Never returns."""
        try:
            source, inputs = json.loads(_read_all(fds[0]))
            for number, fd in enumerate(fds[1:]):
                os.dup2(fd, number)
            program.open_streams()
            limits = Limits(int(header["cpu_s"]), int(header["memory_bytes"]))
            self._jail.enter(limits, self._pid, kept=channel.fileno())
            channel.close()  # no program can claim that this has failed
        except BaseException as error:
            _tell(channel, {"failed": repr(error)})
            os._exit(program.ERROR)
        program.run(source, inputs)

    def _finish(self, call: _Call) -> None:
        _, status, usage = os.wait4(call.pid, 0)
        told = {
            "exit": os.waitstatus_to_exitcode(status),
            "timed_out": call.timed_out,
            "seconds": time.monotonic() - call.began,
            "cpu_s": usage.ru_utime + usage.ru_stime,
        }
        self._calls.remove(call)
        self._poller.unregister(call.exit_fd)
        os.close(call.exit_fd)
        with contextlib.suppress(KeyError):  # the caller has hung up
            self._poller.unregister(call.channel)
        _tell(call.channel, told)
        call.channel.close()


def _kill(call: _Call) -> None:
    os.kill(call.pid, signal.SIGKILL)  # not reaped yet, so the id is its own


def _tell(channel: socket.socket, what: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the caller has hung up
        channel.send(json.dumps(what).encode())


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
    """Serve over the descriptor that the command line names."""
    host = socket.socket(fileno=int(sys.argv[1]))
    for name in MODULES:
        importlib.import_module(name)
    time.tzset()
    sys.path.clear()  # programs find what is loaded, and nothing else
    os.environ.clear()
    server = Server(host)
    host.send(b"ready")
    server.serve()
