"""Every planted bug is found: within 2,000 seeds, usually within a few."""

from __future__ import annotations

import pytest

from fedoptima.fuzzing.campaign import play
from fedoptima.fuzzing.script import draw
from fedoptima.methods.registry import COMPARED, METHODS
from tests.fuzzing.mutants import MUTANTS, planted

OURS = {name: METHODS[name] for name in COMPARED}

SEEDS = 2_000
# Where the search begins, for bugs that few scripts meet: it saves many scripts, and needs no more
# than a look at the others when scripts are drawn in another way.
BEGIN = {
    "the sender stays on without a connection": 1_520,
    "a barrier counts a device that left": 577,
    "the credit of a device that leaves is lost": 112,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    begin = BEGIN.get(name, 0)
    seeds = (*range(begin, SEEDS), *range(begin))
    with planted(name):
        found = (seed for seed in seeds if play(draw(seed, OURS))[1] is not None)
        assert next(found, None) is not None, f"{SEEDS} seeds without a broken law"


def test_there_are_at_least_ten() -> None:
    assert len(MUTANTS) >= 10
    assert BEGIN.keys() <= MUTANTS.keys()
