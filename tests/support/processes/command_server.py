"""Run commands without waiting for imports: each `quire ...` is forked from a process with Quire.

    command_server.py serve PATH                       listens there until its input ends
    python -I -S command_server.py PATH ARGUMENT...    runs one command there

A fork takes a few milliseconds instead of half a second of CPU time. The second program represents
the command: it passes on its standard streams, environment and working directory, waits, and exits
as the command did. If it is killed, so is the command. The command itself is a separate process
with a normal exit: output is flushed and threads are joined.
"""

from __future__ import annotations

import array
import gc
import json
import os
import select
import signal
import socket
import sys

LENGTH_BYTES = 8
STREAMS = 3
BACKLOG = 64
EXIT_GONE = 125
"""No command of ours exits with this status."""


# -- the server, which imports Quire ----------------------------------------------------------


def serve(path: str) -> None:
    """Serve requests. Returns once in each process that becomes a command."""
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


def mind(connection: socket.socket) -> bool:
    """Fork the command and report how it ended. Return False in the command."""
    try:
        request, streams = receive(connection)
    except EOFError:
        return True
    pid = os.fork()
    if pid == 0:
        connection.close()
        become(request, streams)
        return False
    ended = os.pidfd_open(pid)
    if ended not in select.select([connection.fileno(), ended], [], [])[0]:
        os.kill(pid, signal.SIGKILL)  # The process that it ran for is gone.
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        connection.sendall(b"%d" % status)
    except OSError:
        pass
    return True


def receive(connection: socket.socket) -> tuple[dict[str, object], list[int]]:
    """Return the request and its streams. EOFError means that the requester was killed."""
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
    return json.loads(text), streams.tolist()


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


# -- what stands for a command, which imports nothing -----------------------------------------


def run(path: str, arguments: list[str]) -> int:
    request = {
        "arguments": arguments, "environment": dict(os.environ), "directory": os.getcwd(),
    }  # fmt: skip
    text = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        streams = array.array("i", range(STREAMS))
        head = len(text).to_bytes(LENGTH_BYTES, "big")
        connection.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
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
    import uvloop  # noqa: F401

    import quire.cli.common.configuration
    import quire.client.client
    import quire.metadata.sqlite.store
    import quire.streams.namespace.namespace  # noqa: F401
    from quire.cli.main import main

    gc.freeze()  # Otherwise each command copies what its collector touches.
    serve(sys.argv[2])
    main()
