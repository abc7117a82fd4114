"""Run a command that ends when its parent process ends, for whatever reason.

    python -I -S _launch.py PARENT_PID SIGNAL COMMAND...

This file is separate and runs without importing Quire: it becomes the command, so it has to start
quickly. Linux sends the process SIGNAL when the *thread* that started it ends; this setting
survives the exec below. On other systems the command simply runs.
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
