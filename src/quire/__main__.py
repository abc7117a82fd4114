"""The start of the program `quire`, which is also `python -m quire`."""

import atexit
import os
import signal
import sys


def main() -> None:
    """Run the program. It always ends in SystemExit.

    The command line is imported here, so that Ctrl-C ends the program without a traceback even
    during its imports, which take seconds on a busy machine.
    """
    open_standard_streams()
    # Python removes its signal handlers after the exit functions, of which the first one that was
    # registered is called last. Ctrl-C would then kill the process before it returns its status.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    try:
        from quire.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: nothing was begun; run the same command again\n")
        sys.exit(130)
    try:
        run()
    except SystemExit as ended:
        _end_at_once_on_ctrl_c(ended.code if isinstance(ended.code, int) else 0)
        raise


def _end_at_once_on_ctrl_c(status: int) -> None:
    """Let Ctrl-C end the process with this status.

    The command has ended, but Python still joins threads and calls exit functions. Ctrl-C would
    print tracebacks of these, and replace the status.
    """
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(status))


def open_standard_streams() -> None:
    """Open the null device for each standard stream that is closed, as after `quire ... >&-`.

    Otherwise the next file or socket would get its descriptor, and a message could be written into
    the metadata. The event loop refuses such descriptors, and ends the process.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "w" if descriptor else "r"
            opened = os.open(os.devnull, os.O_WRONLY if descriptor else os.O_RDONLY)
            if opened == descriptor:  # Processes that this one starts need it too.
                os.set_inheritable(opened, True)
            stream = open(opened, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


if __name__ == "__main__":
    main()
