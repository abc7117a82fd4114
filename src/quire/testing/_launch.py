"""Runs a command that ends when its parent does, however that ends.

    python -I -S _launch.py PARENT_PID SIGNAL COMMAND...

A file of its own, run without importing Quire: it becomes the command, so it has to be quick.
Linux sends the process SIGNAL when the *thread* that started it ends; that survives the exec below.
Elsewhere the command simply runs.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    parent, number, *command = arguments
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        if prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        if os.getppid() != int(parent):
            return  # it ended before this line
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
