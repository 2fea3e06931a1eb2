"""Submissions of the ring that attack the grader: what they do, and how it may end."""

import textwrap
from dataclasses import dataclass

FRAME = """
import os, struct, sys, time
def frame(header, payload=b"", lengths=None):
    start = struct.pack("<IQ", *(lengths or (len(header), len(payload))))
    os.write(int(sys.argv[1]), start + header + payload)
"""
RETURN = b'{"#":"dict","items":[["op","return"],["value",null],["arguments",[%s,null]]]}'
ASK_TIME = b'{"#":"dict","items":[["op","time"]]}'

# The kernel's call "exit" as machine code, because the audit hook knows what ctypes looks up.
EXIT_OF_A_THREAD = """
import ctypes, mmap, os, threading, time
threading.Thread(target=time.sleep, args=(10**6,)).start()
code = {"x86_64": "b83c00000031ff0f05", "aarch64": "a80b80d2000080d2010000d4"}[os.uname().machine]
page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)
page.write(bytes.fromhex(code))
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""


@dataclass(frozen=True)
class Hostile:
    """``attack`` runs in all_reduce, before the right answer is computed.

    At import where ``at_import``.

    ``ends``: the statuses that it may have, with spaces. ``says``: a part of the message.
    """

    name: str
    ends: str
    attack: str
    says: str = ""
    at_import: bool = False
    is_quick: bool = False

    def text(self, reference: str) -> str:
        """The file ring.py."""
        attack = textwrap.dedent(self.attack).strip()
        if self.at_import:
            return f"{attack}\n\n\n{reference}"
        right = reference.replace("def all_reduce(", "def right(")
        body = textwrap.indent(attack, "    ")
        return f'{right}\n\ndef all_reduce(comm, buffer, op="sum"):\n{body}\n    right(comm, buffer, op)\n'


def raw(name: str, sent: str, ends: str = "crashed", says: str = "") -> Hostile:
    """Writes bytes of its own to the connection, and then nothing more."""
    return Hostile(
        name,
        ends,
        f"{FRAME}\nRETURN = {RETURN!r}\nTIME = {ASK_TIME!r}\n{sent}\ntime.sleep(10**6)",
        says,
    )


TIME_AND_MEMORY = [
    Hostile("sleeps for ever", "timeout", "import time; time.sleep(10**6)", "ring.py, line", is_quick=True),
    Hostile("asks again and again", "timeout", "import time\nwhile True: comm.time(); time.sleep(0.09)",
            "ring.py, line", is_quick=True),
    Hostile("ranks sleep in turn", "timeout", "import numpy, time\nwhile True:\n"
            "    if comm.rank == 0: time.sleep(0.09); comm.send(numpy.zeros(1), 1); comm.recv(numpy.zeros(1), 1)\n"
            "    else: comm.recv(numpy.zeros(1), 0); time.sleep(0.09); comm.send(numpy.zeros(1), 0)"),
    Hostile("computes a little and sleeps", "timeout", "import time\nwhile True:\n"
            "    end = time.process_time() + 0.02\n    while time.process_time() < end: pass\n    time.sleep(0.08)"),
    Hostile("an error whose text talks", "timeout", "import time\nclass E(Exception):\n    def __str__(self):\n"
            "        while True: comm.time(); time.sleep(0.09)\nraise E"),
    Hostile("its first thread ends", "crashed", EXIT_OF_A_THREAD, "process ended", is_quick=True),
    Hostile("computes for ever at import", "timeout", "while True: pass", "ring.py, line", at_import=True),
    Hostile("makes files", "blocked", 'open("/tmp/x", "w")', "writing /tmp/x is forbidden"),
    Hostile("makes folders for ever", "blocked", 'import os\nn = 0\nwhile True: os.mkdir(f"/tmp/{n}"); n += 1',
            "not permitted"),
    Hostile("fills the memory", "crashed timeout", "x = []\nwhile True: x.append(bytearray(1 << 26))"),
    Hostile("memory that no limit sees", "blocked", "import mmap\nwhile True: mmap.mmap(-1, 1 << 26)", "not permitted",
            is_quick=True),
    Hostile("a file of 4 GB", "blocked", 'open("/dev/shm/x", "wb").truncate(4 << 30)', "Read-only"),
    Hostile("prints for ever", "crashed", 'while True: print("x" * 10**6)', "printed more than", is_quick=True),
    Hostile("a thousand threads", "crashed", "import threading, time\nfor _ in range(1000): threading.Thread("
            "target=time.sleep, args=(9,), daemon=True).start()", "can't start new thread"),
    Hostile("a thread that outlives it", "crashed", "import threading, time\nthreading.Thread(target=time.sleep, "
            "args=(10**6,)).start()", "threads still run"),
    Hostile("stops itself", "timeout", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"),
    Hostile("ignores all signals", "timeout", "import signal, time, atexit\natexit.register(time.sleep, 10**6)\n"
            "for s in {*signal.Signals} - {9, 19}: signal.signal(s, signal.SIG_IGN)\ntime.sleep(10**6)"),
    Hostile("never ends being deleted", "timeout", "import time\nclass D:\n"
            "    def __del__(self): time.sleep(10**6)\nD()"),
    Hostile("a value without end", "timeout crashed", "import itertools\nclass L(list):\n"
            "    def __iter__(self): return itertools.count()\nreturn L()"),
    Hostile("too deep", "crashed timeout", "import sys; sys.setrecursionlimit(10**9)\ndef f(): return f() + f()\nf()"),
]  # fmt: skip
PROCESSES = [
    Hostile("fork bomb", "blocked", "import os\nwhile True: os.fork()", "os.fork is forbidden", is_quick=True),
    Hostile("a process by ctypes", "blocked", "import ctypes; ctypes.pythonapi.fork()", "forbidden"),
    Hostile("a process past the hook", "blocked", "import _posixsubprocess as p, os\nr, w = os.pipe()\n"
            'p.fork_exec([b"true"], [b"/bin/true"], True, (w,), None, None, -1, -1, -1, -1, -1, -1, r, w, True, False,'
            " 0, None, None, None, -1, None, True)", "Operation not permitted"),
    Hostile("ends with code 0", "crashed", "import os; os._exit(0)", "exit code 0", is_quick=True),
    Hostile("ends at import", "crashed", "import os; os._exit(0)", "exit code 0", at_import=True),
    Hostile("kills everything", "crashed blocked", "import os\nfor pid in (1, os.getppid(), 0, -1, os.getpid()):\n"
            "    try: os.kill(pid, 9)\n    except ProcessLookupError: pass"),
    Hostile("SystemExit", "crashed", "raise SystemExit(0)", "SystemExit"),
    Hostile("KeyboardInterrupt", "crashed", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    Hostile("an error that has no text", "crashed", "class E(BaseException):\n"
            "    def __str__(self): raise E\nraise E", "cannot be read"),
    Hostile("an error whose text never ends", "timeout", "class E(Exception):\n    def __str__(self):\n"
            "        while True: pass\nraise E"),
    Hostile("an error that rules the terminal", "crashed", r'raise ValueError("\x1b[2J\ud800" * 10**6)', r"\x1b[2J"),
]  # fmt: skip
LOOKS_AND_TALKS = [
    Hostile("writes outside", "blocked", 'open("/submission/x", "w")', "writing /submission/x is forbidden"),
    Hostile("writes outside past the hook", "blocked", 'import os; os.mkdir("/usr/lib/x")', "not permitted"),
    Hostile("reads the hidden tests", "blocked", "import os\n"
            'for top in ("/grader", "/submission", "/root", "/home", "/work", "..", "/proc/1/root", "/proc/1/cwd"):\n'
            '    for folder, _, names in os.walk(top): assert "criteria.py" not in names, folder\n'
            'open("/home/assignments/ring/criteria.py")', "/ring/criteria.py is forbidden", is_quick=True),
    Hostile("reads the environment", "crashed blocked", "import glob, os\nfound = str(os.environ)\n"
            'for each in glob.glob("/proc/*/environ"): found += open(each).read()\nassert "SECRET" in found, found'),
    Hostile("the library's algorithms", "blocked", "from collectives.algorithms import ring", "collectives.algorithms"),
    Hostile("another library", "blocked", "import torch", "torch"),
    Hostile("a socket", "blocked", 'import socket; socket.create_connection(("127.0.0.1", 80))', "is forbidden",
            is_quick=True),
    Hostile("a socket, hushed up", "blocked", 'import socket\ntry: socket.create_connection(("127.0.0.1", 80))\n'
            "except OSError: pass", "is forbidden"),
    Hostile("a name that two ranks could share", "blocked", 'import socket; socket.socket(socket.AF_UNIX).bind("\\0x")',
            "not permitted"),
    Hostile("a lock that two ranks could see", "blocked", "import fcntl\nfcntl.flock(open(__file__), fcntl.LOCK_EX)",
            "not permitted"),
    Hostile("a file that two ranks could share", "blocked", 'open(f"/dev/shm/{comm.rank}", "w")', "Read-only"),
    Hostile("takes another's place when memory is short", "blocked", 'open("/proc/self/oom_score_adj", "w").write("0")',
            "forbidden"),
]  # fmt: skip
LIES = [
    Hostile("prints the expected output", "failed", "print(buffer * 2); return buffer * 2", "expected"),
    Hostile("patches the comparison", "failed", "import builtins, json, numpy\nnumpy.isclose = lambda *a, **k: True\n"
            "builtins.min = json.loads = None\nreturn", "expected", is_quick=True),
    Hostile("patches the connection", "failed", "from collectives_course import comm as c, rank, wire\n"
            "c.Comm.sendrecv = lambda self, out, dst, into, src: None", "expected"),
    Hostile("not a number", "failed", 'buffer[:] = float("nan"); return', "expected"),
    Hostile("another shape", "failed", "buffer.shape = (2, 3); return", "argument 0: got shape (2, 3)"),
    Hostile("closes the connection", "crashed", "import os, sys, time; os.close(int(sys.argv[1])); time.sleep(10**6)",
            "closed its connection"),
    Hostile("sends without end", "failed timeout", "import numpy\n"
            "while True: comm.send(numpy.zeros(1 << 22), 1 - comm.rank)"),
    raw("not a frame", 'os.write(int(sys.argv[1]), b"\\xff" * 64)', says="frame too large"),
    raw("a frame without end", 'while True: frame(b"x", b"", (10**6, 0)); time.sleep(0.01)', "timeout"),
    raw("half a frame", 'frame(b"x", b"", (1000, 0))', "timeout"),
    raw("deep nesting", 'frame(b"[" * 10**5 + b"]" * 10**5)', says="unreadable frame"),
    raw("a huge number", 'frame(b"9" * 10**5)', says="unreadable frame"),
    raw("a dtype of objects", 'frame(RETURN % b\'{"#":"array","dtype":"|O8","shape":[1]}\', bytes(8))'),
    raw("an endless shape", 'frame(RETURN % b\'{"#":"array","dtype":"<f8","shape":[0,1e30]}\')', says="no array"),
    raw("a return of nothing", 'frame(RETURN % b"null")', "failed", "argument 0: got none"),
    raw("speaks for ever", "while True: comm.time()", "timeout"),
    raw("a heavy question, again and again",
        'import os\nhead = TIME[:-2] + b\',["x",[\' + b"0," * 50000 + b"0]]]}"\n'
        "while True: frame(head); os.read(int(sys.argv[1]), 1 << 16)", says="cannot read"),
    raw("a long question", 'frame(TIME[:-2] + b\',["line",[\' + b"0," * 5000 + b"0]]]}")', says="cannot read"),
    raw("speaks and does not hear", "while True: frame(TIME)", says="speaks before"),
]  # fmt: skip
HOSTILE = [*TIME_AND_MEMORY, *PROCESSES, *LOOKS_AND_TALKS, *LIES]
