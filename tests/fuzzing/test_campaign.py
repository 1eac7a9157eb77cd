"""Scripts of faults: all laws hold, a seed is a script, and a failure shrinks to what it needs."""

from __future__ import annotations

import gc
import os
from functools import cache
from multiprocessing import parent_process
from pathlib import Path

import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.core.method import Method
from fedoptima.fuzzing.campaign import campaign, find_methods, play, play_seeds, smallest
from fedoptima.fuzzing.script import NEVER, Kind, draw
from fedoptima.fuzzing.story import Story, introduction
from fedoptima.methods.fl import fl
from fedoptima.methods.registry import COMPARED, METHODS
from fedoptima.named_code import ANY_CODE, NO_CODE
from tests.fuzzing.mutants import planted
from tests.support.leftovers import OfAThread

OURS = {name: METHODS[name] for name in COMPARED}


@pytest.mark.parametrize("name", OURS)
def test_all_laws_hold_for_every_method(name: str) -> None:
    tally = play_seeds(range(40), {name: OURS[name]})
    assert not tally.failures, tally.failures[0]


def test_a_small_device_is_not_held_for_those_that_have_left() -> None:
    tally = play_seeds([20378], {"cse_fsl": OURS["cse_fsl"]})
    assert not tally.failures, tally.failures[0]


def test_a_device_that_has_left_need_not_be_answered() -> None:
    # Its update counts although it is gone, and is then refused: the server went back in time.
    tally = play_seeds([1_000_207], {"cse_fsl": OURS["cse_fsl"]})
    assert not tally.failures, tally.failures[0]


def test_the_methods_take_turns() -> None:
    tally = play_seeds(range(2 * len(OURS)), OURS)
    assert tally.runs == dict.fromkeys(OURS, 2)


@pytest.mark.no_cover  # hundreds of scripts; the first test of this file plays as many
def test_every_kind_of_fault_strikes_and_is_survived() -> None:
    tally = play_seeds(range(2_000, 2_150), OURS)
    assert all(tally.tries[kind] and tally.survived[kind] == tally.tries[kind] for kind in Kind)


@pytest.mark.parametrize("seed", range(7))
def test_a_seed_gives_the_same_story_again(seed: int) -> None:
    stories = []
    for _ in range(2):
        story = Story()
        play(draw(seed, OURS), story.told)
        stories.append(story.lines)
    assert stories[0] == stories[1]


@pytest.mark.no_cover  # hundreds of scripts; the first test of this file plays as many
def test_processes_come_to_the_same_figures_as_one() -> None:
    alone = campaign(0, 110, ["fl"], NO_CODE)
    together = campaign(0, 110, ["fl"], NO_CODE, jobs=2)
    assert alone.plain() == together.plain()


collect_once = cache(gc.collect)


def fl_that_collects(devices: int) -> Method:
    if parent_process() is not None:
        collect_once()
    return fl(devices)


def test_processes_do_not_finalise_what_threads_of_this_one_have_left(tmp_path: Path) -> None:
    gc.disable()
    try:
        OfAThread(tmp_path / "finalised")
        name = f"{__name__}:{fl_that_collects.__name__}"
        assert not campaign(0, 110, [name], ANY_CODE, jobs=2).failures
        assert not (tmp_path / "finalised").exists()
    finally:
        gc.enable()
    gc.collect()
    assert (tmp_path / "finalised").read_text() == f"{os.getpid()}\n"


def test_a_failure_keeps_only_the_faults_that_it_needs() -> None:
    with planted("session numbers are not looked at"):
        seed = play_seeds(range(50), OURS).failures[0].seed
        script = draw(seed, OURS)
        broken = play(script)[1]
        assert broken is not None
        fewer = smallest(script, broken.law)
        assert len(fewer.faults) < len(script.faults)
        for position in range(len(fewer.faults)):
            assert fewer.faults[position] in script.faults
        again = play(fewer)[1]
        assert again is not None
        assert again.law == broken.law
    assert play(script)[1] is None


def test_a_story_names_the_fleet_and_marks_the_faults() -> None:
    drawn = (draw(seed, OURS) for seed in range(100))
    script, story = next(s for s in drawn if s.faults and s.stop == NEVER), Story()
    play(script, story.told)
    told = "\n".join(introduction(script))
    assert script.method in told
    assert all(device.name in told for device in script.devices)
    faults = [line for line in story.lines if line.fault]
    assert faults
    assert all(" ! " in str(line) for line in faults)


def test_a_name_that_builds_no_method_is_refused() -> None:
    with pytest.raises(ConfigError, match="must return a Method"):
        find_methods(["tests.fuzzing.test_campaign:nonsense"], ANY_CODE)


def nonsense(devices: int) -> int:
    return devices
