"""Programs that try to escape from the sandbox.

Each prints ``ESCAPED`` only if it achieved its aim; most run once for every matching
target. The :class:`Scene` shows escapes from outside, too.
"""

# ruff: noqa: E501, SIM905  (programs are strings)

from __future__ import annotations

import dataclasses

C = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    return libc.syscall(ctypes.c_long(number), *args)
"""

# Ways to read the file PATH; the content goes to stdout.
READERS = {
    "open": "print('ESCAPED', open(PATH, 'rb').read(99))",
    "os.open": "import os; print('ESCAPED', os.read(os.open(PATH, 0), 99))",
    "path": "import os; print('ESCAPED', os.open(PATH, os.O_PATH))",
    "FileIO": "import io; print('ESCAPED', io.FileIO(PATH).read(99))",
    "open_code": "import io; print('ESCAPED', io.open_code(PATH).read(99))",
    "posix": "import posix; print('ESCAPED', posix.open(PATH, 0))",
    "stat": "import os; print('ESCAPED', os.stat(PATH))",
    "lstat": "import os; print('ESCAPED', os.lstat(PATH))",
    "access": "import os\nif os.access(PATH, os.F_OK): print('ESCAPED')",
    "linecache": "import linecache\nif t := linecache.getlines(PATH): print('ESCAPED', t)",
    "tokenize": "import tokenize; print('ESCAPED', tokenize.open(PATH).read())",
    "loader": (
        "from importlib.machinery import SourceFileLoader as L\n"
        "print('ESCAPED', L('m', PATH).get_data(PATH))"
    ),
    "runpy": "import runpy; print('ESCAPED', runpy.run_path(PATH))",
    "link": "import os; os.link(PATH, '/tmp/sandbox_link'); print('ESCAPED')",
    "chdir": "import os; os.chdir(os.path.dirname(PATH)); print('ESCAPED')",
    "list": "import os; print('ESCAPED', os.listdir(os.path.dirname(PATH)))",
    "scandir": "import os; print('ESCAPED', list(os.scandir(os.path.dirname(PATH))))",
    "fopen": C + "f = libc.fopen(PATH.encode(), b'r')\nif f: print('ESCAPED', f)",
    "creat": C + "f = libc.open(PATH.encode(), 2)\nif f >= 0: print('ESCAPED', f)",
    "openat": C + "f = call(257, -100, PATH.encode(), 0)\nif f >= 0: print('ESCAPED')",
    "openat2": (
        C + "how = ctypes.create_string_buffer(24)\n"
        "f = call(437, -100, PATH.encode(), how, 24)\nif f >= 0: print('ESCAPED')"
    ),
    "statx": (
        C + "b = ctypes.create_string_buffer(512)\n"
        "if call(332, -100, PATH.encode(), 0, 0xfff, b) == 0: print('ESCAPED')"
    ),
    "newfstatat": (
        C + "b = ctypes.create_string_buffer(512)\n"
        "if call(262, -100, PATH.encode(), b, 0) == 0: print('ESCAPED')"
    ),
    "handle": (
        C + "b = ctypes.create_string_buffer(b'\\x80\\0\\0\\0' + bytes(200))\n"
        "if call(303, -100, PATH.encode(), b, b, 0) == 0: print('ESCAPED')"
    ),
    "dlopen": "import ctypes; print('ESCAPED', ctypes.CDLL(PATH))",
}

# Ways to write to PATH, in a folder that everybody may write to.
WRITERS = {
    "open": "open(PATH, 'w').write('x'); print('ESCAPED')",
    "append": "open(PATH, 'a').write('x'); print('ESCAPED')",
    "os.open": "import os; os.open(PATH, os.O_CREAT | os.O_WRONLY); print('ESCAPED')",
    "tmpfile": "import os; os.open('/tmp', os.O_TMPFILE | os.O_RDWR); print('ESCAPED')",
    "mkdir": "import os; os.mkdir(PATH); print('ESCAPED')",
    "mkfifo": "import os; os.mkfifo(PATH); print('ESCAPED')",
    "mknod": "import os; os.mknod(PATH); print('ESCAPED')",
    "symlink": "import os; os.symlink('/etc/passwd', PATH); print('ESCAPED')",
    "rename": "import os; os.rename(CANARY, PATH); print('ESCAPED')",
    "replace": "import os; os.replace(CANARY, PATH); print('ESCAPED')",
    "unlink": "import os; os.unlink(CANARY); print('ESCAPED')",
    "rmdir": "import os; os.rmdir(os.path.dirname(PATH)); print('ESCAPED')",
    "truncate": "import os; os.truncate(CANARY, 0); print('ESCAPED')",
    "chmod": "import os; os.chmod(CANARY, 0o777); print('ESCAPED')",
    "chown": "import os; os.chown(CANARY, 1, 1); print('ESCAPED')",
    "utime": "import os; os.utime(CANARY); print('ESCAPED')",
    "setxattr": "import os; os.setxattr(CANARY, 'user.x', b'1'); print('ESCAPED')",
    "shm": (
        "import _posixshmem as s, os\n"
        "print('ESCAPED', s.shm_open('/sandbox', os.O_CREAT | os.O_RDWR, 0o600))"
    ),
    "memfd": "import os; os.memfd_create('x'); print('ESCAPED')",
    "bind": (
        "import socket; s = socket.socket(socket.AF_UNIX); s.bind(PATH)\n"
        "print('ESCAPED')"
    ),
    "shelve": "import shelve; shelve.open(PATH)['a'] = 1; print('ESCAPED')",
    "sqlite": (
        "import sqlite3; c = sqlite3.connect(PATH); c.execute('create table t(a)')\n"
        "print('ESCAPED')"
    ),
    "logging": (
        "import logging; logging.basicConfig(filename=PATH); logging.error('x')\n"
        "print('ESCAPED')"
    ),
    "mkstemp": "import tempfile; tempfile.mkstemp(); print('ESCAPED')",
}

NETWORK = {
    "connect": (
        "import socket; socket.create_connection(('127.0.0.1', PORT), 1)\n"
        "print('ESCAPED')"
    ),
    "tcp": "import socket; socket.socket(); print('ESCAPED')",
    "udp": (
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM)\n"
        "s.sendto(b'x', ('127.0.0.1', PORT)); print('ESCAPED')"
    ),
    "ipv6": "import socket; socket.socket(socket.AF_INET6); print('ESCAPED')",
    "unix": (
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect(SOCKET)\n"
        "print('ESCAPED')"
    ),
    "abstract": (
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0' + ABSTRACT)\n"
        "print('ESCAPED')"
    ),
    "pair": "import socket; socket.socketpair(); print('ESCAPED')",
    "netlink": "import socket; socket.socket(socket.AF_NETLINK, 3, 0); print('ESCAPED')",
    "alg": "import socket; socket.socket(socket.AF_ALG, 5); print('ESCAPED')",
    "packet": "import socket; socket.socket(socket.AF_PACKET, 3); print('ESCAPED')",
    "vsock": "import socket; socket.socket(socket.AF_VSOCK); print('ESCAPED')",
    "_socket": "import _socket; _socket.socket(); print('ESCAPED')",
    "libc": C + "if libc.socket(2, 1, 0) >= 0: print('ESCAPED')",
    "raw": C + "if call(41, 2, 1, 0) >= 0: print('ESCAPED')",
    "dns": "import socket; socket.gethostbyname('localhost') and print('ESCAPED')",
    "urllib": (
        "import urllib.request as u; u.urlopen(f'http://127.0.0.1:{PORT}', timeout=1)\n"
        "print('ESCAPED')"
    ),
    "asyncio": (
        "import asyncio\nasync def f(): await asyncio.open_connection('127.0.0.1', PORT)\n"
        "asyncio.run(f()); print('ESCAPED')"
    ),
}

PROCESSES = {
    "fork": "import os\nif os.fork() == 0: os._exit(0)\nprint('ESCAPED')",
    "forkpty": "import os; os.forkpty(); print('ESCAPED')",
    "vfork": C + "p = libc.vfork()\nif p == 0: os._exit(0)\nif p > 0: print('ESCAPED')",
    "execv": "import os; os.execv('/bin/echo', ['echo', 'ESCAPED'])",
    "execve": "import os; os.execve('/bin/sh', ['sh', '-c', 'echo ESCAPED'], {})",
    "fexecve": "import os; os.execve(0, ['x'], {}); print('ESCAPED')",
    "system": "import os; os.system('echo ESCAPED')",
    "popen": "import os; print(os.popen('echo ESCAPED').read())",
    "spawn": (
        "import os; os.posix_spawn('/bin/echo', ['echo', 'ESCAPED'], {})\n"
        "print('ESCAPED')"
    ),
    "subprocess": "import subprocess; print(subprocess.check_output(['echo', 'ESCAPED']))",
    "multiprocessing": (
        "import multiprocessing as m\np = m.get_context('fork').Process(target=print)\n"
        "p.start(); print('ESCAPED')"
    ),
    "libc.system": C + "if libc.system(b'echo ESCAPED') == 0: print('ESCAPED')",
    "thread": (
        "import threading; t = threading.Thread(target=print, args=['ESCAPED'])\n"
        "t.start(); t.join()"
    ),
    "_thread": "import _thread; _thread.start_new_thread(print, ()); print('ESCAPED')",
    "pool": (
        "from concurrent.futures import ThreadPoolExecutor as P\n"
        "print(P().submit(lambda: 'ESCAPED').result())"
    ),
    "fork bomb": (
        "import os\nfor _ in range(1000):\n"
        "    try:\n        os.fork()\n        print('ESCAPED')\n"
        "    except OSError:\n        pass"
    ),
    "clone bomb": (
        C + "for flags in (0, 17, 0x100, 0x4111, 0x3d0f00, 0x7c020000 | 17):\n"
        "    if call(56, flags, 0, 0, 0, 0) >= 0: print('ESCAPED')"
    ),
    "clone3": (
        C + "b = ctypes.create_string_buffer(88)\n"
        "if call(435, b, 88) >= 0: print('ESCAPED')"
    ),
}

# TARGET is in turn the program itself, the server, the training process, and all.
SIGNALS = {
    "kill": "import os; os.kill(TARGET, 9); print('ESCAPED')",
    "kill 0": "import os; os.kill(TARGET, 0); print('ESCAPED')",
    "stop": "import os; os.kill(TARGET, 19); print('ESCAPED')",
    "killpg": "import os; os.killpg(abs(TARGET), 15); print('ESCAPED')",
    "libc.kill": C + "if libc.kill(TARGET, 10) == 0: print('ESCAPED')",
    "tkill": C + "if call(200, TARGET, 9) == 0: print('ESCAPED')",
    "tgkill": C + "if call(234, TARGET, TARGET, 9) == 0: print('ESCAPED')",
    "sigqueue": (
        C + "b = ctypes.create_string_buffer(128)\n"
        "if call(129, TARGET, 10, b) == 0: print('ESCAPED')"
    ),
    "pidfd": "import os; os.pidfd_open(TARGET); print('ESCAPED')",
    "pidfd raw": C + "if call(434, TARGET, 0) >= 0: print('ESCAPED')",
    "ptrace attach": C + "if call(101, 16, TARGET, 0, 0) == 0: print('ESCAPED')",
    "ptrace seize": C + "if call(101, 0x4206, TARGET, 0, 0) == 0: print('ESCAPED')",
    "vm_readv": (
        C + "b = ctypes.create_string_buffer(64)\n"
        "v = (ctypes.c_void_p * 2)(ctypes.addressof(b), 64)\n"
        "if call(310, TARGET, v, 1, v, 1, 0) >= 0: print('ESCAPED')"
    ),
    "vm_writev": (
        C + "b = ctypes.create_string_buffer(64)\n"
        "v = (ctypes.c_void_p * 2)(ctypes.addressof(b), 64)\n"
        "if call(311, TARGET, v, 1, v, 1, 0) >= 0: print('ESCAPED')"
    ),
    "prlimit": (
        "import resource as r\n"
        "r.prlimit(TARGET, r.RLIMIT_NOFILE, (0, 0)); print('ESCAPED')"
    ),
    "priority": "import os; os.setpriority(os.PRIO_PROCESS, TARGET, 19); print('ESCAPED')",
    "affinity": "import os; os.sched_setaffinity(TARGET, [0]); print('ESCAPED')",
    "getpgid": "import os; print('ESCAPED', os.getpgid(TARGET))",
    "getsid": "import os; print('ESCAPED', os.getsid(TARGET))",
}

RIGHTS = {
    "setuid": "import os; os.setuid(0); print('ESCAPED')",
    "seteuid": "import os; os.seteuid(0); print('ESCAPED')",
    "setresuid": "import os; os.setresuid(0, 0, 0); print('ESCAPED')",
    "setgid": "import os; os.setgid(0); print('ESCAPED')",
    "setgroups": "import os; os.setgroups([0]); print('ESCAPED')",
    "root": "import os\nif os.geteuid() == 0: print('ESCAPED')",
    "chroot": "import os; os.chroot('/tmp'); print('ESCAPED')",
    "nice": "import os; os.nice(-1); print('ESCAPED')",
    "setsid": "import os; os.setsid(); print('ESCAPED')",
    "unshare": C + "if call(272, 0x10000000) == 0: print('ESCAPED')",
    "unshare net": C + "if call(272, 0x50000000) == 0: print('ESCAPED')",
    "setns": C + "if call(308, 0, 0) == 0: print('ESCAPED')",
    "capset": (
        C + "h = ctypes.create_string_buffer(b'\\x22\\x05\\x08\\x20' + bytes(4))\n"
        "d = ctypes.create_string_buffer(b'\\xff' * 24)\n"
        "if call(126, h, d) == 0: print('ESCAPED')"
    ),
    "no_new_privs": C + "if call(157, 38, 0, 0, 0, 0) == 0: print('ESCAPED')",
    "pdeathsig": C + "if call(157, 1, 0, 0, 0, 0) == 0: print('ESCAPED')",
    "dumpable": C + "if call(157, 4, 1, 0, 0, 0) == 0: print('ESCAPED')",
    "seccomp off": C + "if call(157, 22, 0, 0, 0, 0) == 0: print('ESCAPED')",
    "seccomp": C + "if call(317, 0, 0, 0) == 0: print('ESCAPED')",
    "personality": C + "if call(135, 0x0400000) >= 0: print('ESCAPED')",
    "landlock": C + "if call(444, None, 0, 1) >= 0: print('ESCAPED')",
    "mount": C + "if call(165, b'x', b'/tmp', b'tmpfs', 0, 0) == 0: print('ESCAPED')",
    "keyctl": C + "if call(250, 0, -3, 1) >= 0: print('ESCAPED')",
    "add_key": C + "if call(248, b'user', b'a', b'b', 1, -3) >= 0: print('ESCAPED')",
    "bpf": (
        C + "b = ctypes.create_string_buffer(128)\n"
        "if call(321, 0, b, 128) >= 0: print('ESCAPED')"
    ),
    "io_uring": (
        C + "b = ctypes.create_string_buffer(128)\n"
        "if call(425, 1, b) >= 0: print('ESCAPED')"
    ),
    "perf": (
        C + "b = ctypes.create_string_buffer(128)\n"
        "if call(298, b, 0, -1, -1, 0) >= 0: print('ESCAPED')"
    ),
    "userfaultfd": C + "if call(323, 1) >= 0: print('ESCAPED')",
    "shmget": C + "if call(29, 0, 4096, 0o1600) >= 0: print('ESCAPED')",
    "msgget": C + "if call(68, 0, 0o1600) >= 0: print('ESCAPED')",
    "mq_open": C + "if call(240, b'sandbox', 0o102, 0o600, 0) >= 0: print('ESCAPED')",
    "mmap exec": (
        "import mmap; mmap.mmap(-1, 4096, prot=mmap.PROT_EXEC | mmap.PROT_READ)\n"
        "print('ESCAPED')"
    ),
    "mprotect exec": (
        C + "b = ctypes.create_string_buffer(8192)\n"
        "page = (ctypes.addressof(b) + 4095) & ~4095\n"
        "if libc.mprotect(ctypes.c_void_p(page), 4096, 7) == 0: print('ESCAPED')"
    ),
    "pkey_mprotect": (
        C + "b = ctypes.create_string_buffer(8192)\n"
        "page = (ctypes.addressof(b) + 4095) & ~4095\n"
        "if call(329, ctypes.c_void_p(page), 4096, 7, -1) == 0: print('ESCAPED')"
    ),
    "arch_prctl": C + "if call(158, 0x1004, 0) == 0: print('ESCAPED')",
    "modify_ldt": C + "if call(154, 0, 0, 0) >= 0: print('ESCAPED')",
    "environ": "import os\nif os.environ: print('ESCAPED')",
    "uname": "import os; print('ESCAPED', os.uname())",
    "timer": "import signal; signal.setitimer(signal.ITIMER_REAL, 9); print('ESCAPED')",
    "sched": (
        "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))\n"
        "print('ESCAPED')"
    ),
    **{
        f"raise {name}": (
            f"import resource as r; r.setrlimit(r.{name}, (r.RLIM_INFINITY,) * 2)\n"
            "print('ESCAPED')"
        )
        for name in (
            "RLIMIT_AS RLIMIT_CPU RLIMIT_NOFILE RLIMIT_FSIZE RLIMIT_NPROC RLIMIT_CORE"
        ).split()
    },
}

DESCRIPTORS = {
    "inherited": (
        "import os\nfor fd in range(3, 5000):\n"
        "    try:\n        os.fstat(fd)\n        print('ESCAPED', fd)\n"
        "    except OSError:\n        pass"
    ),
    "read all": (
        "import os\nfor fd in range(3, 300):\n"
        "    try:\n        print('ESCAPED', os.read(fd, 9))\n"
        "    except OSError:\n        pass"
    ),
    "write all": (
        "import os\nfor fd in (0, *range(3, 300)):\n"
        "    try:\n        os.write(fd, b'x')\n        print('ESCAPED', fd)\n"
        "    except OSError:\n        pass"
    ),
    "dup": "import os; os.dup(1); print('ESCAPED')",
    "dup2": "import os; os.dup2(1, 0); print('ESCAPED')",
    "pipe": "import os; os.pipe(); print('ESCAPED')",
    "epoll": "import select; select.epoll(); print('ESCAPED')",
    "eventfd": "import os; os.eventfd(0); print('ESCAPED')",
    "inotify": C + "if call(294, 0) >= 0: print('ESCAPED')",
    "fcntl dup": "import fcntl; fcntl.fcntl(1, fcntl.F_DUPFD, 0); print('ESCAPED')",
    "pipe size": "import fcntl; fcntl.fcntl(1, 1031, 1 << 20); print('ESCAPED')",
    "flags": "import fcntl, os; fcntl.fcntl(1, 4, os.O_NONBLOCK); print('ESCAPED')",
    "owner": "import fcntl, os; fcntl.fcntl(1, 8, os.getppid()); print('ESCAPED')",
    "ioctl": "import fcntl; fcntl.ioctl(1, 0x541B, bytes(8)); print('ESCAPED')",
    "stdin grows": "import os; os.ftruncate(0, 1 << 20); print('ESCAPED')",
    "stdin map": ("import mmap; m = mmap.mmap(0, 1); m[0] = b'x'[0]; print('ESCAPED')"),
    "reopen": "open('/proc/self/fd/0', 'w').write('x'); print('ESCAPED')",
    "dev": "open('/dev/stdin').read(); print('ESCAPED')",
    "sendfile": "import os; os.sendfile(1, 0, 0, 9) and print('ESCAPED')",
    "splice": C + "if call(275, 0, 0, 1, 0, 9, 0) >= 0: print('ESCAPED')",
    "sendmsg": C + "b = ctypes.create_string_buffer(64)\nfor fd in range(9):\n"
    "    if call(46, fd, b, 0) >= 0: print('ESCAPED')",
}

INTROSPECTION = {
    "gc": (
        "import gc\nfor o in gc.get_objects():\n"
        "    if type(o) is str and SECRET() in o: print('ESCAPED')\n"
        "    if type(o) is dict and any(type(v) is str and SECRET() in v"
        " for v in o.values()): print('ESCAPED')"
    ),
    "modules": (
        "import sys\nfor m in list(sys.modules.values()):\n"
        "    if SECRET() in repr(vars(m)): print('ESCAPED')"
    ),
    "frames": (
        "import sys\nf = sys._getframe()\nwhile f.f_back:\n"
        "    f = f.f_back\n    if SECRET() in repr(f.f_locals): print('ESCAPED')"
    ),
    "sockets": (
        "import gc, socket\nfor o in gc.get_objects():\n"
        "    if isinstance(o, socket.socket):\n"
        "        try:\n            o.send(b'{}'); print('ESCAPED')\n"
        "        except OSError:\n            pass"
    ),
    "server": (
        "import sys\nfrom rllib_llm.sandbox import server\nimport gc\n"
        "for o in gc.get_objects():\n"
        "    if isinstance(o, server.Server):\n        o.serve(); print('ESCAPED')"
    ),
    "jail": ("from rllib_llm.sandbox import jail\nj = jail.Jail(); print('ESCAPED')"),
    "product": "import rllib_llm.sandbox.fork_server; print('ESCAPED')",
    "packages": (
        "import sys; sys.path[:] = ['/usr/lib/python3/dist-packages', PACKAGES]\n"
        "import numpy; print('ESCAPED')"
    ),
    "import hook": (
        "import sys, importlib\nsys.path_importer_cache.clear(); sys.path = [PACKAGES]\n"
        "importlib.invalidate_caches(); importlib.import_module('yaml')\n"
        "print('ESCAPED')"
    ),
    "pickle": (
        "import pickle, os\nclass X:\n"
        "    def __reduce__(self): return os.system, ('echo ESCAPED',)\n"
        "pickle.loads(pickle.dumps(X()))"
    ),
    "pickle open": (
        "import pickle\npickle.loads(b'cbuiltins\\nopen\\n(V/etc/passwd\\ntR.')\n"
        "print('ESCAPED')"
    ),
    "marshal": (
        "import types\nf = lambda: 0\n"
        "f.__code__ = f.__code__.replace(co_code=bytes(range(256)), co_stacksize=0)\n"
        "f()"
    ),
    "null": "import ctypes; ctypes.string_at(0)",
    "poke": "import ctypes; ctypes.memset(id(int), 255, 4096); int('1')",
    "abort": "import os; os.abort()",
    "exit 70": "import os; os._exit(70)",
    "callback": (
        "import ctypes\nf = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)\n"
        "f() and print('called')"
    ),
    "faulthandler": "import faulthandler; faulthandler._sigsegv()",
    "deep": "exec('(' * 100_000 + ')' * 100_000)",
    "deep list": "x = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
    "nul": "exec('print(1)\\0')",
}

# Programs that exhaust a resource; each must end with this status.
BOMBS = {
    "while": ("while True: pass", "timeout"),
    "count": ("import itertools\nfor _ in itertools.count(): pass", "timeout"),
    "power": ("9 ** 9 ** 9", "timeout"),
    "sum": ("sum(range(10 ** 12))", "timeout"),
    "regex": ("import re; re.match('(a+)+$', 'a' * 40 + 'b')", "timeout"),
    "sleep": ("import time; time.sleep(1000)", "timeout"),
    "select": ("import select; select.select([], [], [])", "timeout"),
    "stubborn": (
        "import signal\nfor n in range(1, 65):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        "timeout",
    ),
    "catch all": (
        "def f():\n    while True:\n        try:\n            while True: pass\n"
        "        except BaseException: pass\nf()",
        "timeout",
    ),
    "in finally": ("try: 1 / 0\nfinally:\n    while True: pass", "timeout"),
    "in del": (
        "class X:\n    def __del__(self):\n        while True: pass\nX()",
        "timeout",
    ),
    "in str": (
        "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
        "timeout",
    ),
    "lock": (
        "import threading\nl = threading.Lock(); l.acquire(); l.acquire()",
        "timeout",
    ),
    "bytes": ("x = b'x' * 10 ** 10", "memory"),
    "list": ("x = [0] * 10 ** 10", "memory"),
    "grow": ("x = []\nwhile True: x.append(' ' * 10 ** 6 + str(len(x)))", "memory"),
    "double": ("x = 'x'\nwhile True: x += x", "memory"),
    "bytearray": ("x = bytearray(8 * 10 ** 9)", "memory"),
    "anonymous map": (
        "import mmap\nx = [mmap.mmap(-1, 1 << 20) for _ in range(10 ** 5)]",
        "error",
    ),
    "malloc": (
        C + "libc.malloc.restype = ctypes.c_void_p\n"
        "n = sum(bool(libc.malloc(1 << 20)) for _ in range(5000))\n"
        "print('ESCAPED' if n > 400 else n)",
        "ok",
    ),
    "print": ("while True: print('x' * 1000)", "output"),
    "one print": ("print('x' * 10 ** 7)", "output"),
    "stderr": ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "output"),
    "write": ("import os\nwhile True: os.write(1, b'x' * 4096)", "output"),
    "puts": (C + "while True: libc.write(1, b'x' * 1000, 1000)", "output"),
    "recursion": ("def f(): f()\nf()", "error"),
    "exception text": ("raise ValueError('x' * 10 ** 6)", "error"),
}


@dataclasses.dataclass(frozen=True)
class Scene:
    """Targets of hostile programs.

    Attributes:
        canary: A file that everybody may read and write.
        link: A symbolic link to it.
        folder: A folder that everybody may write to.
        port: A port with listeners on TCP and UDP.
        socket: Path of a Unix socket with a listener.
        abstract: Name of an abstract Unix socket with a listener.
        server: Process id of the server.
        trainer: Process id of the process that uses the sandbox.
        packages: Folder of the installed packages.
    """

    canary: str
    link: str
    folder: str
    port: int
    socket: str
    abstract: str
    server: int
    trainer: int
    packages: str

    def programs(self) -> dict[str, str]:
        """Return all programs, none of which may succeed."""
        found = {}
        paths = {
            "canary": self.canary,
            "link": self.link,
            "passwd": "/etc/passwd",
            "dots": f"/proc/self/cwd/../{self.canary}",
            "own environ": "/proc/self/environ",
            "own maps": "/proc/self/maps",
            "server's memory": f"/proc/{self.server}/mem",
            "trainer's environ": f"/proc/{self.trainer}/environ",
            "trainer's root": f"/proc/{self.trainer}/root{self.canary}",
            "device": "/dev/null",
        }
        for reader, code in READERS.items():
            for name, path in paths.items():
                found[f"read {name} by {reader}"] = f"PATH = {path!r}\n{code}"
        for writer, code in WRITERS.items():
            for name, folder in (("folder", self.folder), ("shm", "/dev/shm")):
                head = f"PATH = {folder + '/trace'!r}\nCANARY = {self.canary!r}\n"
                found[f"write {name} by {writer}"] = head + code
        head = f"PORT, SOCKET, ABSTRACT = {self.port}, {self.socket!r}, {self.abstract!r}\n"
        found |= {f"network {n}": head + code for n, code in NETWORK.items()}
        found |= {f"process {n}": code for n, code in PROCESSES.items()}
        targets = {
            "itself": "__import__('os').getpid()",
            "server": self.server,
            "trainer": self.trainer,
            "all": -1,
            "init": 1,
        }
        for name, target in targets.items():
            for how, code in SIGNALS.items():
                found[f"{how} {name}"] = f"TARGET = {target}\n{code}"
        found |= {f"right {n}": code for n, code in RIGHTS.items()}
        found |= {f"descriptor {n}": code for n, code in DESCRIPTORS.items()}
        # The secret is concatenated, so that no program finds it in its own source.
        head = f"PACKAGES = {self.packages!r}\nSECRET = lambda: ''.join(SECRET_PARTS)\n"
        head += "SECRET_PARTS = ['the-', 'other-', 'program']\n"
        found |= {f"inside {n}": head + code for n, code in INTROSPECTION.items()}
        return found
