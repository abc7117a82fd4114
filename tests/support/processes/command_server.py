"""A server that runs commands without imports: it forks each `quire ...` from a process with Quire.

A command that a test starts (`forked_server`) becomes a child of the process that asked for it,
which adopts it. A command of a script is represented by a small program that waits for it.

    command_server.py serve PATH                       listens at PATH until its input ends
    python -I -S command_server.py PATH ARGUMENT...    runs one command at that server

A fork takes a few milliseconds instead of half a second of CPU time. The second program represents
the command: it passes on its standard streams, environment and working directory, waits, and exits
as the command did. If it is killed, so is the command. The command itself is a separate process.
At its end, output is flushed and threads are joined.
"""

from __future__ import annotations

import _socket
import gc
import marshal
import os
import select
import signal
import sys
import time

# The program that represents a command runs for each of them, so no module is imported above that
# imports others.

LENGTH_BYTES = 8
INT_BYTES = 4
"""The size of a descriptor in a message."""
STREAMS = 3
BACKLOG = 64
EXIT_GONE = 125
"""The exit status for a command that was lost, because the server or the requester is gone.

No command of Quire's exits with it.
"""
PR_SET_PDEATHSIG = 1
LEFT_OUT = ("quire.spark.", "quire.testing.", "quire.__main__")
"""The beginnings of the names of modules that no server and few commands import."""
ADOPTED_S = 10.0
"""Seconds for which a server waits to become a child of the process that asked for it."""


# -- the server, which imports Quire ----------------------------------------------------------


def serve(path: str) -> None:
    """Serve requests at a socket. Returns once in each forked process that becomes a command."""
    import socket

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(BACKLOG)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        minders: set[int] = set()
        while True:
            minders -= {pid for pid in minders if os.waitpid(pid, os.WNOHANG)[0]}
            ready = select.select([listener.fileno(), sys.stdin.fileno()], [], [])[0]
            if sys.stdin.fileno() in ready:
                os._exit(0)
            connection, _ = listener.accept()
            minder = os.fork()
            if minder == 0:
                listener.close()
                if mind(connection):
                    os._exit(0)
                return
            minders.add(minder)
            connection.close()


def mind(connection: _socket.socket) -> bool:
    """Fork the command, and report its exit status to the requester.

    If the requester adopts the command, report the process id at once instead. Returns True in the
    process that waits, and False in the process that becomes the command.
    """
    try:
        request, streams = receive(connection)
    except EOFError:
        return True
    pid = os.fork()
    if pid == 0:
        if "parent" in request:
            be_child_of(request)
        connection.close()
        become(request, streams)
        return False
    if "parent" in request:
        connection.sendall(b"%d" % pid)
        return True  # With the end of this process the server gets another parent.
    ended = os.pidfd_open(pid)
    if ended not in select.select([connection.fileno(), ended], [], [])[0]:
        os.kill(pid, signal.SIGKILL)  # The process that it ran for is gone.
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        connection.sendall(b"%d" % status)
    except OSError:
        pass
    return True


def receive(connection: _socket.socket) -> tuple[dict[str, object], list[int]]:
    """Return the request and the descriptors of its standard streams.

    Raises EOFError if the requester was killed.
    """
    import array
    import socket

    size = STREAMS * array.array("i").itemsize
    data, ancillary, _, _ = connection.recvmsg(LENGTH_BYTES, socket.CMSG_SPACE(size))
    streams = array.array("i")
    for _, _, content in ancillary:
        streams.frombytes(content)
    missing = int.from_bytes(data, "big")
    text = b""
    while len(text) < missing:
        piece = connection.recv(missing - len(text))
        if not piece:
            raise EOFError
        text += piece
    if not text:
        raise EOFError
    return marshal.loads(text), streams.tolist()


def be_child_of(request: dict[str, object]) -> None:
    """Wait until this process is a child of the requester, and let it die with the requester.

    The request has the requester's id as `parent`, and as `signal` the signal to receive at its
    end, or 0 for none. Like a process that `subprocess` starts, this one has a session of its own.
    """
    import ctypes

    os.setsid()
    deadline = time.monotonic() + ADOPTED_S
    while os.getppid() != request["parent"]:
        if time.monotonic() > deadline:
            os._exit(EXIT_GONE)
        time.sleep(0.001)
    if request["signal"]:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, request["signal"], 0, 0, 0)


def become(request: dict[str, object], streams: list[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    environment, arguments, directory = (
        request["environment"], request["arguments"], request["directory"]
    )  # fmt: skip
    assert isinstance(environment, dict)
    assert isinstance(arguments, list)
    assert isinstance(directory, str)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.argv = ["quire", *arguments]


def end(status: object) -> None:
    """End this process with the exit status of its command, if that is a number.

    As at any exit, threads are joined, functions registered for the exit are called, and output is
    flushed. But the modules are left as they are: to take them apart, the process would copy all
    memory that it shares with the server.
    """
    import atexit
    import threading

    if not isinstance(status, int):
        return
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        return  # It is closed. The interpreter tells of it at a normal exit.
    os._exit(status & 0xFF)


# -- what stands for a command, which imports nothing -----------------------------------------


def run(path: str, arguments: list[str]) -> int:
    request = {
        "arguments": arguments, "environment": dict(os.environ), "directory": os.getcwd(),
    }  # fmt: skip
    text = marshal.dumps(request)
    connection = _socket.socket(_socket.AF_UNIX)
    connection.connect(path)
    streams = b"".join(one.to_bytes(INT_BYTES, sys.byteorder) for one in range(STREAMS))
    head = len(text).to_bytes(LENGTH_BYTES, "big")
    connection.sendmsg([head], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    connection.sendall(text)
    answer = connection.recv(16)
    if not answer:
        sys.stderr.write("the server of commands is gone, and the command with it\n")
        return EXIT_GONE
    status = int(answer)
    if status < 0:
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    if sys.argv[1] != "serve":
        sys.exit(run(sys.argv[1], sys.argv[2:]))
    import array  # noqa: F401
    import ctypes  # noqa: F401
    import importlib
    import pkgutil
    import socket  # noqa: F401

    import aiohttp.web  # noqa: F401
    import kazoo.client  # noqa: F401
    import uvloop  # noqa: F401

    import quire
    from quire.cli.main import main

    # Commands import what they use when they begin, which takes each of them 10 to 100 ms.
    for module in pkgutil.walk_packages(quire.__path__, "quire."):
        if not module.name.startswith(LEFT_OUT):
            importlib.import_module(module.name)
    gc.freeze()  # Otherwise each command copies what its collector touches.
    serve(sys.argv[2])
    try:
        main()
    except SystemExit as ended:
        end(ended.code)
        raise
