"""Ctrl-C in a run that is started from Python: as at the command line, it can be resumed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedoptima.config.schema import Recipe
from fedoptima.display.interrupt import Interrupt
from fedoptima.display.views import tell
from fedoptima.experiments.given import Given, named_packages
from fedoptima.experiments.simulated_run import Interrupted

AsksToStop = Callable[[], bool]


@contextmanager
def stoppable(
    interrupted: AsksToStop | None, out: str | Path | None, way_on: Callable[[], str]
) -> Iterator[AsksToStop]:
    """Inside, Ctrl-C asks to stop where the state is whole, and a second one ends it at once.

    Without a folder (``out``) there is nothing to save, so the first one does. It leaves here as a
    `KeyboardInterrupt` that says how to go on: ``way_on``, empty if nothing was begun. Not where
    the caller has an own way to ask (``interrupted``), or where Ctrl-C is not ours to take: in
    another thread, or with a handler of the caller's.
    """
    if interrupted is not None or not _ctrl_c_is_ours():
        yield interrupted or (lambda: False)
        return
    try:
        if out is None:
            yield lambda: False
            return
        with Interrupt(tell, signals=(signal.SIGINT,)) as asked:
            yield asked
        if asked.wanted:  # too late to stop it, but the caller may have more to do
            raise Interrupted("stopped when the run was over")
    except (Interrupted, KeyboardInterrupt) as stop:
        if out is None:
            said = "stopped, and nothing was kept: with out=... it could be resumed"
        else:
            said = "; ".join(filter(None, (str(stop) or "stopped", way_on())))
        raise KeyboardInterrupt(said) from None


# Arguments that one of the functions has under another name.
_PLURAL = {("resume_comparison", "method"): "methods"}


def _ctrl_c_is_ours() -> bool:
    main = threading.current_thread() is threading.main_thread()
    return main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def resume_call(function: str, directory: str | Path, recipe: Recipe, given: Given) -> str:
    """How a run or a comparison is resumed, as it would be written."""
    names = [_PLURAL.get((function, name), name) for name in given.names]
    arguments = [repr(str(directory)), *(f"{name}=..." for name in names)]
    if packages := named_packages(recipe):
        arguments.append(f"allow_modules={list(packages)!r}")
    return f"resume it with fedoptima.{function}({', '.join(arguments)})"
