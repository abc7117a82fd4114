"""Signals that end a command whose main thread does not run an event loop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

NAMES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
"""The words with which a command says that a signal ended it, by signal."""

NOTHING_BEGUN = "nothing was begun; run the same command again"
"""The advice after a signal that came before a command had begun its work."""


class SignalReceived(KeyboardInterrupt):
    """A signal that ends the command.

    It is raised in the main thread, whatever that thread does. Code that handles Ctrl-C handles it
    too.
    """

    def __init__(self, number: int, advice: str = "") -> None:
        super().__init__(f"{NAMES[signal.Signals(number)]}{advice and ': '}{advice}")
        self.number = number

    @property
    def status(self) -> int:
        """The exit status of the command, as shells report signals."""
        return 128 + self.number


@contextmanager
def raising_signals(before: Callable[[], object], advice: str = "") -> Iterator[None]:
    """Raise `SignalReceived` in the main thread when one of the signals in `NAMES` arrives.

    `before` is called first, in the signal handler. The message contains `advice`, which says what
    to do next. A signal that is ignored, such as SIGHUP under nohup, stays ignored. In another
    thread than the main one, this does nothing.

    An error that the block raises after a signal is a consequence of it. `SignalReceived` is raised
    in its place. It is also raised for a KeyboardInterrupt of another handler: Spark sets one of
    its own while it starts.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    arrived: list[int] = []

    def received(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        before()
        raise SignalReceived(number, advice)

    with ExitStack() as former:
        for number in NAMES:
            if (was := signal.getsignal(number)) is not signal.SIG_IGN and was is not None:
                former.callback(signal.signal, number, was)
                signal.signal(number, received)
        try:
            yield
        except SignalReceived:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not arrived:
                arrived.append(signal.SIGINT)
                before()
            if arrived:
                raise SignalReceived(arrived[0], advice) from error
            raise


def ending_signals() -> list[signal.Signals]:
    """Return the signals of `NAMES` that ask this process to end.

    SIGHUP is not among them if it is ignored, as under nohup: the end of a terminal must not end a
    process that was started to outlive it. A script's background command ignores SIGINT, but
    `kill -INT` is still how to stop it.
    """
    hung_up_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [one for one in NAMES if one != signal.SIGHUP or not hung_up_ignored]


@contextmanager
def stopping_signals(begun: Callable[[], object]) -> Iterator[threading.Event]:
    """Yield an event that the first signal of `NAMES` sets, so that an endless job can end cleanly.

    The signal also calls `begun`, which tells the user that the job is ending. It runs in a thread
    of its own, because the signal may have interrupted the main thread while that was printing. A
    second signal has the effect that it had outside this block. In another thread than the main
    one, signals are left alone, and the event is never set.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    with ExitStack() as former:

        def end(number: int, frame: FrameType | None) -> None:
            stop.set()
            former.close()
            threading.Thread(target=begun, name="quire-ending", daemon=True).start()

        for number in ending_signals():
            if (was := signal.getsignal(number)) is not None:
                former.callback(signal.signal, number, was)
                signal.signal(number, end)
        yield stop
