"""The laws of `laws.py`, checked with hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import fedoptima.testing.laws as laws
from fedoptima.core.method import Method
from fedoptima.methods.policies import make_policies
from fedoptima.methods.stored_classes import make_storable
from fedoptima.testing.fleets import Build, calm, descriptions

_DEVICES = 3
STEPS = st.sets(st.integers(1, 600), max_size=40)


def check_laws(
    build: Build, wanted: Sequence[str], examples: int, *, smallest: bool = True
) -> None:
    """``smallest``: of a run that breaks a law the smallest is looked for, which may take long."""
    _check_parts(build(_DEVICES), build)
    phases = (Phase.explicit, Phase.generate, *([Phase.shrink] if smallest else []))
    chosen = settings(
        max_examples=examples, phases=phases, deadline=None, database=None, derandomize=True
    )
    for name in wanted:
        law, inputs = _laws(st.just(build))[name]
        try:
            chosen(given(*inputs)(law))()
        except Exception as error:
            error.add_note(f"which breaks the law {name!r}: {law.__doc__ or law.__name__}")
            raise


def _check_parts(method: object, build: Build) -> None:
    if not isinstance(method, Method):
        raise TypeError(f"a method's function must return a Method, and returned {method!r}")
    make_storable(build, make_policies(method))


def _laws(
    build: st.SearchStrategy[Build],
) -> dict[str, tuple[Callable[..., None], tuple[st.SearchStrategy[Any], ...]]]:
    anything = descriptions(build)
    hung = descriptions(build, kinds=("hang", "bandwidth"), stay_hung=True)
    return {
        "ends": (laws.run_ends_by_its_stop_rule, (anything,)),
        "same again": (laws.run_is_the_same_again, (anything,)),
        "checkpoints": (laws.checkpoints_change_nothing, (anything, STEPS)),
        "cap": (laws.cap_holds_at_every_instant, (anything,)),
        "exactly once": (
            laws.update_counts_once,
            (descriptions(build, kinds=("cut", "restore")),),
        ),
        "hung devices": (laws.run_ends_by_its_stop_rule, (hung,)),
        "no starvation": (laws.nobody_starves, (calm(build),)),
    }
