"""The permissions of files with secrets (keys, passwords, tokens), and of files with data."""

from __future__ import annotations

import os
import stat

PRIVATE_FILE_MODE = 0o600
"""The mode of new files that hold entries or metadata. The umask can only restrict it."""
PRIVATE_DIRECTORY_MODE = 0o700
"""The mode of new directories for files with entries or metadata."""


def exposure_of(path: str | os.PathLike[str]) -> str | None:
    """Return why a file with a secret must not be used, or None if it may be used.

    It must not be used if every account of the machine can read it. A group may read it, because
    Kubernetes mounts secrets that way, and some systems have a group for keys. Devices and pipes
    are not checked.

    Args:
        path: The path of the file. If it cannot be examined, the result is None, and the attempt to
            read the file reports the error.

    Returns:
        The problem and the command that corrects it, as the end of a message, or None.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode) or not found.st_mode & stat.S_IROTH:
        return None
    mode = stat.S_IMODE(found.st_mode)
    return f"every account of this machine can read {path} (mode {mode:04o}): chmod 600 {path}"
