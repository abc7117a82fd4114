"""The text of errors for what a process may lack: file descriptors, disk space, a writable disk."""

from __future__ import annotations

import errno
import os
import sys

if sys.platform != "win32":
    import resource

LEAST = 32
"""The smallest limit with which a command or a server can begin to work. A bookie without clients
has about 22 descriptors open."""
RESERVED = 80
"""The smallest number of descriptors that connections to a bookie leave to files, to the metadata
store and to the bookie's HTTP server."""
RESERVED_DIVISOR = 4
"""The divisor of the limit that gives the descriptors left to files, if that is more. A bookie has
a descriptor for each file of its log."""
CONNECTIONS_MIN = 16
"""The number of connections that a bookie admits even if the limit leaves no room for them."""
HTTP_DIVISOR, HTTP_CONNECTIONS_MIN = 8, 4
"""The divisor of the limit that gives the connections that an HTTP server admits, and the least of
them. The server may be in the process of a bookie."""
_ADVICE = (
    "Raise it: `ulimit -n 65536` in the shell before the start, or LimitNOFILE=65536 in the "
    "systemd unit"
)

READ_ONLY = (
    "its file system is read-only. Mount it writable (look in the kernel's log for errors of the "
    "disk first), or use a directory on another disk"
)
"""The text for a file that cannot be written because its file system is mounted read-only."""
_DISK_SHORTAGES = {
    errno.ENOSPC: "the disk is full. Free some space on it (`df -h` shows the disks), or use a "
    "directory on another disk",
    errno.EDQUOT: "the disk quota of this user is used up. Remove files, or raise the quota",
    errno.EROFS: READ_ONLY,
}
"""The text for each error of a disk that takes no data, by error number."""


def limit() -> int | None:
    """Return the number of descriptors that this process may have, or None without a limit."""
    if sys.platform == "win32":  # Windows has no such limit
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> int | None:
    """Raise the limit of this process as far as an ordinary user may, and return it."""
    if sys.platform == "win32":  # Windows has no such limit
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass  # macOS refuses more than OPEN_MAX, and says "unlimited" all the same
    return limit()


def too_low() -> str:
    """Return why no command can work with the limit of this process, or ""."""
    found = limit()
    if found is None or found >= LEAST:
        return ""
    return f"{_limit_of(found)}, and at least {LEAST} are needed. {_ADVICE}"


def connections_max(wanted: int, descriptors: int | None) -> int:
    """Return the number of connections, at most `wanted`, that leave enough descriptors to files.

    `descriptors` is the limit of the process, or None without a limit. `CONNECTIONS_MIN`
    connections are admitted even if they leave too few.
    """
    if descriptors is None:
        return wanted
    left = descriptors - max(RESERVED, descriptors // RESERVED_DIVISOR)
    return min(wanted, max(CONNECTIONS_MIN, left))


def http_connections_max(wanted: int, descriptors: int | None) -> int:
    """Return the number of connections that an HTTP server admits, at most `wanted`.

    `descriptors` is the limit of the process, or None without a limit.
    """
    if descriptors is None:
        return wanted
    return min(wanted, max(HTTP_CONNECTIONS_MIN, descriptors // HTTP_DIVISOR))


def few_connections(admitted: int, wanted: int, descriptors: int | None) -> str:
    """Return the sentence that a server admits fewer connections than its setting says."""
    return (
        f"{_limit_of(descriptors or 0)}, so it admits {admitted} connections instead of {wanted}. "
        f"{_ADVICE}"
    )


def no_descriptor(error: BaseException) -> str:
    """Return in words that no descriptor was left, or "" if the error has another reason."""
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.EMFILE:
        return f"no file descriptor is left: {_limit_of(limit() or 0)}. {_ADVICE}"
    if code == errno.ENFILE:
        return (
            "no file descriptor is left on this machine. Stop the program that has too many files "
            "open, or raise fs.file-max with sysctl"
        )
    return ""


def none_left() -> str:
    """Return in words that this process can open no file now, or ""."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return no_descriptor(error)
    return ""


def shortage(error: BaseException) -> str:
    """Return in words what the process lacks, and what to do, or "" if it lacks nothing."""
    code = error.errno if isinstance(error, OSError) else None
    return no_descriptor(error) or _DISK_SHORTAGES.get(code or 0, "")


def reason_of(error: OSError) -> str:
    """Return the reason of an error in words, and what to do if the process lacks something."""
    return shortage(error) or error.strerror or str(error) or type(error).__name__


def _limit_of(descriptors: int) -> str:
    return f"the limit of file descriptors of this process (`ulimit -n`) is {descriptors}"
