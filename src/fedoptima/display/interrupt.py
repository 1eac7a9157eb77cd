"""Ctrl-C asks a run to stop where it can go on later; a second one ends it at once.

A run is asked between two events, where its state is whole. Before it is asked for the first time
there is nothing to save, so until then Ctrl-C ends the program as always; but not while torch is
being loaded, whose own code would be torn down in the middle, and abort.

Where an event loop runs inside, the second one ends it between two of its callbacks. Raised in the
middle of one, it would get lost now and then: gRPC's callbacks have nobody to raise it to.

A service manager (SIGTERM) and a terminal that is closed (SIGHUP) ask for the same. A program under
nohup ignores SIGHUP from its start, and goes on ignoring it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType, TracebackType

from fedoptima.display.closed_terminal import let_go_of_closed_terminals

_NOTICE = "stopping after this step; press Ctrl-C again to end at once"
_LATER = 0.1  # seconds until a signal comes again that came at a bad moment


class Interrupt:
    """Call it to ask whether the user wants to stop."""

    def __init__(
        self,
        say: Callable[[str], None] | None = None,
        signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    ) -> None:
        """``say`` confirms it to the user when asked next; without it, that is done at once."""
        self._say = say
        self._signals = signals
        self._asked = False
        self._wanted = False
        self._ending = False

    def __call__(self) -> bool:
        self._asked = True
        if self._wanted and self._say is not None:
            self._say(_NOTICE)
            self._say = None
        return self._wanted

    @property
    def wanted(self) -> bool:
        """Whether it was pressed, asked or not."""
        return self._wanted

    def __enter__(self) -> Interrupt:
        self._outside = _running_loop()  # a notebook's: it goes on when what is inside has ended
        heard = [s for s in self._signals if s != signal.SIGHUP or not _ignores_hang_up()]
        self._before = {s: signal.signal(s, self._pressed) for s in heard}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        if _loads_torch():
            later = threading.Timer(_LATER, os.kill, (os.getpid(), number))
            later.daemon = True
            later.start()
            return
        if number == signal.SIGHUP:
            # For good: the shell and the system send one each, and the second is no second wish.
            if self._before.pop(signal.SIGHUP, None) is None:
                return
            signal.signal(number, signal.SIG_IGN)
            let_go_of_closed_terminals()
            if self._wanted:  # it is stopping already
                return
        if self._wanted or not self._asked:
            self._end()
            return
        self._wanted = True
        if self._say is None:
            # Not through a console: the handler may have come in the middle of one's own output.
            with suppress(OSError):  # nobody may be left to read it
                notice = f"\n{_NOTICE}\n".encode()
                os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, notice)

    def _end(self) -> None:
        loop = _running_loop()
        if loop is None or loop is self._outside or self._ending:  # at the third press it hangs
            raise KeyboardInterrupt
        self._ending = True
        loop.call_soon_threadsafe(_raise_interrupt)  # wakes it, also from a signal handler


def _raise_interrupt() -> None:
    raise KeyboardInterrupt


def _running_loop() -> AbstractEventLoop | None:
    try:
        return get_running_loop()
    except RuntimeError:
        return None


def _ignores_hang_up() -> bool:
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def _loads_torch() -> bool:
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))
