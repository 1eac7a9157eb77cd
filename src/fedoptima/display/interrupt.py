"""Ctrl-C asks a run to stop where it can go on later; a second one ends it at once.

A run is asked between two events, where its state is whole. Before it is asked for the first time
there is nothing to save, so until then Ctrl-C ends the program as always; but not while torch is
being loaded, whose own code would be torn down in the middle, and abort.

A service manager (SIGTERM) and a terminal that is closed (SIGHUP) ask for the same. A program under
nohup ignores SIGHUP from its start, and goes on ignoring it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
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
            raise KeyboardInterrupt
        self._wanted = True
        if self._say is None:
            # Not through a console: the handler may have come in the middle of one's own output.
            with suppress(OSError):  # nobody may be left to read it
                notice = f"\n{_NOTICE}\n".encode()
                os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, notice)


def _ignores_hang_up() -> bool:
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def _loads_torch() -> bool:
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))
