"""Run a command whose Jupyter kernels are forked from a process that has imported what pages and notebooks import.

    python .ci/kernels.py COMMAND ...

A page's own work takes a second or two, a kernel's start and its imports take three more. Here they
are made once. The command finds, under JUPYTER_PATH, a kernel named python3. It starts this file as
a client, which

1. connects to the server's socket, and sends the kernel's working directory, environment and
   options as a line of JSON, together with its own standard streams;
2. receives the number of the process that the server has forked, and passes interrupts on to it;
3. receives the exit code when that process has ended. Where the client is killed its connection
   closes, and the server kills the kernel.

Only Linux has what tells the server that a process has ended; elsewhere the command runs with usual
kernels.
"""

import atexit
import json
import os
import random
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

PRELOADED = (
    "ipykernel.ipkernel",
    "ipykernel.kernelapp",
    "matplotlib.figure",
    "matplotlib.pyplot",
    "numba",
    "numpy",
    "pandas",
    "pyarrow.parquet",
    "scipy.sparse",
    "seaborn",
    "torch",
    "collectives.figures",
    "collectives.simulator",
    "collectives_book.experiment",
    "collectives_book.figures.measured",
)
IS_POSSIBLE = hasattr(os, "pidfd_open")
LONGEST = 1 << 20  # bytes of a request


def main(command: list[str]) -> int:
    """Run the command, and return its exit code; its kernels have ended with it."""
    if not IS_POSSIBLE:
        return run_to_its_end(command, dict(os.environ))
    folder = Path(tempfile.mkdtemp(prefix="kernels-"))
    try:
        return run_with_server(command, folder)
    finally:
        shutil.rmtree(folder)


def run_with_server(command: list[str], folder: Path) -> int:
    """Start the server and run the command, which finds a description of the kernel in the folder."""
    at = folder / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(at))
        listener.listen(16)
        server = os.fork()
        if not server:
            serve(listener)
    kernel = folder / "kernels" / "python3"
    kernel.mkdir(parents=True)
    argv = [
        sys.executable,
        "-S",
        "-E",
        str(Path(__file__).resolve()),
        "--kernel",
        str(at),
        "{connection_file}",
    ]
    described = {
        "argv": argv,
        "display_name": "Python 3",
        "language": "python",
        "metadata": {"debugger": True},
    }
    (kernel / "kernel.json").write_text(json.dumps(described), encoding="utf8")
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("JUPYTER_PATH"))))
    try:
        return run_to_its_end(command, os.environ | {"JUPYTER_PATH": path})
    finally:
        os.kill(server, signal.SIGTERM)
        os.waitpid(server, 0)


def run_to_its_end(command: list[str], environment: dict[str, str]) -> int:
    """Return the command's exit code; Ctrl-C reaches the command, too, which ends by itself."""
    with subprocess.Popen(command, env=environment) as process:
        while True:
            with suppress(KeyboardInterrupt):
                return process.wait()


def serve(listener: socket.socket) -> None:
    """Fork a kernel for each client, until this process is ended; does not return."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends first, and then this process
    die_with_parent()
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # as a kernel sets it
    for name in PRELOADED:
        with suppress(ImportError):
            __import__(name)
    kernels: dict[int, socket.socket] = {}  # the connection of each kernel's client, by process
    with selectors.DefaultSelector() as events:
        events.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in events.select():
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    kernel = fork_kernel(connection)
                    if kernel is None:
                        connection.close()
                        continue
                    kernels[kernel] = connection
                    events.register(connection, selectors.EVENT_READ, kernel)
                    events.register(os.pidfd_open(kernel), selectors.EVENT_READ, kernel)
                elif isinstance(key.fileobj, int):  # a kernel has ended
                    events.unregister(key.fileobj)
                    os.close(key.fileobj)
                    end(kernels.pop(key.data), key.data, events)
                else:  # a client is gone
                    with suppress(ProcessLookupError):
                        os.kill(key.data, signal.SIGKILL)
                    events.unregister(key.fileobj)


def fork_kernel(connection: socket.socket) -> int | None:
    """Return the process that became a kernel; None where the client has gone."""
    message, streams, _, _ = socket.recv_fds(connection, LONGEST, 3)
    if not message:
        return None
    request = json.loads(message)
    kernel = os.fork()
    if not kernel:
        become_kernel(request, streams)
    for stream in streams:
        os.close(stream)
    with suppress(OSError):
        connection.sendall(kernel.to_bytes(4, "little"))
    return kernel


def become_kernel(request: dict[str, Any], streams: list[int]) -> None:
    """Turn this forked process into the kernel that a client has asked for; does not return."""
    code = 1
    try:
        die_with_parent()
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(3, 256)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        random.seed()
        sys.modules["numpy"].random.seed()
        from ipykernel.kernelapp import IPKernelApp

        IPKernelApp.launch_instance(
            argv=[*request["options"], f"--IPKernelApp.parent_handle={os.getppid()}"]
        )
        code = 0
    # Leaving in the usual way would also leave the blocks of the server, whose copy this process
    # is.
    finally:
        with suppress(Exception):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def end(connection: socket.socket, kernel: int, events: selectors.BaseSelector) -> None:
    """Tell the client the exit code of a kernel that has ended."""
    _, status = os.waitpid(kernel, 0)
    with suppress(OSError):
        connection.sendall(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
    with suppress(KeyError):
        events.unregister(connection)
    connection.close()


def be_client(at: str, connection_file: str, *options: str) -> int:
    """Have the server fork a kernel, wait for its end, and return its exit code."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(at)
    request = {
        "folder": os.getcwd(),  # noqa: PTH109, this process imports little
        "environment": dict(os.environ),
        "options": ["-f", connection_file, *options],
    }
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    kernel = int.from_bytes(connection.recv(4), "little")
    if not kernel:
        return 1
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: os.kill(kernel, received))
    code = connection.recv(1)
    return code[0] if code else 1


def die_with_parent() -> None:
    """Have the system kill this process when its parent ends."""
    import ctypes

    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1] == "--kernel":
        sys.exit(be_client(*sys.argv[2:]))
    sys.exit(main(sys.argv[1:]))
