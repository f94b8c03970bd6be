"""Kernel-level isolation of a process: identity, limits, Landlock, seccomp.

Uses the standard library only, because it runs in the fork server, which loads no
other packages. A process cannot undo these steps, nor can its children.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import platform
import resource
import signal
import struct
import sys

NOBODY = 65534  # user and group ids without privileges, by convention

_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446  # x86_64
_LANDLOCK_CREATE_RULESET_VERSION = 1
_CAPSET, _SECCOMP = 126, 317
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_SECCOMP_GET_ACTION_AVAIL = 2
_LINUX_CAPABILITY_VERSION_3 = 0x20080522

_AUDIT_ARCH_X86_64 = 0xC000003E
_LOAD, _JUMP_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | 1  # EPERM
_NR, _ARCH, _ARG_1, _ARG_2 = 0, 4, 24, 32  # offsets in struct seccomp_data
_PROT_EXEC, _F_GETFD, _F_GETFL = 4, 1, 3

# System calls needed for computing, printing and exiting, by their x86_64 numbers. The
# filter refuses all others with EPERM.
ALLOWED_CALLS = {
    "read": 0,
    "write": 1,
    "close": 3,
    "fstat": 5,
    "poll": 7,
    "lseek": 8,
    "munmap": 11,
    "brk": 12,
    "rt_sigaction": 13,
    "rt_sigprocmask": 14,
    "rt_sigreturn": 15,
    "readv": 19,
    "writev": 20,
    "select": 23,
    "sched_yield": 24,
    "mremap": 25,
    "madvise": 28,
    "nanosleep": 35,
    "getpid": 39,
    "exit": 60,
    "gettimeofday": 96,
    "getrusage": 98,
    "times": 100,
    "getuid": 102,
    "getgid": 104,
    "geteuid": 107,
    "getegid": 108,
    "getppid": 110,
    "sigaltstack": 131,
    "gettid": 186,
    "time": 201,
    "futex": 202,
    "restart_syscall": 219,
    "clock_gettime": 228,
    "clock_getres": 229,
    "clock_nanosleep": 230,
    "exit_group": 231,
    "pselect6": 270,
    "ppoll": 271,
    "getrandom": 318,
}
_MMAP, _MPROTECT, _FCNTL = 9, 10, 72

_libc = ctypes.CDLL(None, use_errno=True)


@dataclasses.dataclass(frozen=True)
class Limits:
    """Resource limits of one program.

    Attributes:
        cpu_s: CPU time, in whole seconds, >= 1.
        memory_bytes: Address space beyond that of the server, in bytes.
    """

    cpu_s: int
    memory_bytes: int


def landlock_abi() -> int:
    """Return the version of Landlock's interface, 0 without Landlock."""
    if not _is_supported_platform():
        return 0
    flags = _LANDLOCK_CREATE_RULESET_VERSION
    return max(0, _libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, flags))


def has_seccomp() -> bool:
    """Return whether the kernel supports seccomp filters."""
    if not _is_supported_platform():
        return False
    action = ctypes.c_uint32(0x00050000)  # SECCOMP_RET_ERRNO, the action used below
    call = (_SECCOMP_GET_ACTION_AVAIL, 0, ctypes.byref(action))
    return _libc.syscall(_SECCOMP, *call) == 0


def _is_supported_platform() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"


class Jail:
    """Isolation that the server prepares once and each child enters.

    Raises:
        OSError: If the kernel has no Landlock.
    """

    def __init__(self) -> None:
        self._ruleset = _deny_all_ruleset(landlock_abi())
        self._filter = ctypes.create_string_buffer(_seccomp_program())
        self._base_bytes = _address_space()

    def enter(self, limits: Limits, parent: int, kept: int) -> None:
        """Drop all rights irrevocably.

        Args:
            limits: Resource limits of the program.
            parent: Process id of the server; the child is killed when it dies.
            kept: A descriptor that stays open, beside 0, 1 and 2.

        Raises:
            OSError: If a step fails; the caller must not run the program then.
        """
        os.setsid()
        os.chdir("/")
        _drop_privileges()
        _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")
        # The kernel clears this flag when the user changes, so it comes after that.
        _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "pdeathsig")
        # The server may have died before the flag was set.
        if os.getppid() != parent:
            raise ProcessLookupError("the server has exited")
        restrict = _libc.syscall(_LANDLOCK_RESTRICT_SELF, self._ruleset, 0)
        _check(restrict, "Landlock")
        _set_limits(limits, self._base_bytes)
        os.closerange(3, kept)
        os.closerange(kept + 1, 1 << 20)
        # Last: the filter refuses the system calls of all steps above.
        self._install_filter()

    def _install_filter(self) -> None:
        count = len(self._filter.raw) // 8
        address = ctypes.addressof(self._filter)
        program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", count, address))
        args = (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0)
        _check(_libc.prctl(*args), "seccomp")


def _drop_privileges() -> None:
    """Switch from root to nobody, and drop every capability in any case."""
    if os.geteuid() == 0:
        # Groups first: nobody may not change them.
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    header = ctypes.create_string_buffer(
        struct.pack("Ii", _LINUX_CAPABILITY_VERSION_3, 0)
    )
    nothing = ctypes.create_string_buffer(24)
    _check(_libc.syscall(_CAPSET, header, nothing), "capset")


def _set_limits(limits: Limits, base_bytes: int) -> None:
    memory = base_bytes + limits.memory_bytes
    for kind, soft, hard in (
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_CPU, limits.cpu_s, limits.cpu_s + 1),
        (resource.RLIMIT_NOFILE, 3, 3),  # no descriptor beyond 0, 1, 2
        (resource.RLIMIT_FSIZE, 0, 0),
        (resource.RLIMIT_NPROC, 0, 0),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
    ):
        resource.setrlimit(kind, (soft, hard))


def _deny_all_ruleset(abi: int) -> int:
    """Return a Landlock ruleset that handles every right and grants none."""
    if abi < 1:
        raise OSError("this kernel has no Landlock")
    # Each version of the interface adds rights; unknown ones make the call fail.
    num_rights = 13 + (abi >= 2) + (abi >= 3) + (abi >= 5)
    fields = [(1 << num_rights) - 1]
    if abi >= 4:
        fields.append(0b11)  # bind and connect TCP
    if abi >= 6:
        fields.append(0b11)  # abstract sockets and signals, to the outside
    rules = ctypes.create_string_buffer(struct.pack(f"{len(fields)}Q", *fields))
    size = 8 * len(fields)
    return _check(_libc.syscall(_LANDLOCK_CREATE_RULESET, rules, size, 0), "Landlock")


def _seccomp_program() -> bytes:
    """Return the seccomp filter: an allow-list with conditions on some arguments."""

    def op(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("HBBI", code, yes, no, k)

    def only_if(call: int, argument: int, test: bytes) -> bytes:
        # The test skips the refusal if the argument is acceptable.
        check = op(_LOAD, argument) + test + op(_RETURN, _REFUSE) + op(_RETURN, _ALLOW)
        return op(_JUMP_EQUAL, call, 0, len(check) // 8) + check

    no_exec = op(_JUMP_ANY_BIT, _PROT_EXEC, 0, 1)
    only_look = op(_JUMP_EQUAL, _F_GETFD, 2, 0) + op(_JUMP_EQUAL, _F_GETFL, 1, 0)
    # Programs of other architectures number their calls differently: kill them.
    program = op(_LOAD, _ARCH) + op(_JUMP_EQUAL, _AUDIT_ARCH_X86_64, 1, 0)
    program += op(_RETURN, _KILL) + op(_LOAD, _NR)
    for number in ALLOWED_CALLS.values():
        program += op(_JUMP_EQUAL, number, 0, 1) + op(_RETURN, _ALLOW)
    program += only_if(_MMAP, _ARG_2, no_exec)
    program += only_if(_MPROTECT, _ARG_2, no_exec)
    program += only_if(_FCNTL, _ARG_1, only_look)
    return program + op(_RETURN, _REFUSE)


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
