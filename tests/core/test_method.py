"""Parts of a method that do not go together."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.core.messages import ProgramSpec
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.reuse import LeastUsed, ReuseRule
from tests.support.rows import fedoptima, fl, splitfed

AGAIN = partial(LeastUsed, ReuseRule())


@pytest.mark.parametrize(
    ("base", "changes", "remedy"),
    [
        (splitfed(), {"program": ProgramSpec("gradient", overlap=True)}, "leave overlap out"),
        (splitfed(), {"program": ProgramSpec("gradient", train_every=2)}, "leave train_every out"),
        (fl(), {"program": ProgramSpec("full", train_every=2)}, "leave train_every out"),
        (fl(), {"reuse": AGAIN}, "leave reuse out"),
        (fl(), {"program": ProgramSpec("FullModel")}, "there are full, auxiliary, gradient"),
        (fl(), {"training": ServerTraining.SHARED}, "'full' goes with ServerTraining.NONE"),
        (splitfed(), {"training": ServerTraining.NONE}, "with SHARED or PER_DEVICE"),
        (splitfed(), {"reuse": AGAIN}, "leave reuse out"),
        (
            fedoptima(),
            {"reuse": AGAIN, "training": ServerTraining.PER_DEVICE},
            r"make them 'auxiliary' and ServerTraining\.SHARED",
        ),
    ],
)
def test_parts_that_do_not_go_together_are_refused(
    base: Method, changes: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(ConfigError, match=remedy):
        replace(base, **changes)


def test_devices_that_wait_for_no_gradients_may_train_on_while_updates_are_merged() -> None:
    assert replace(fl(), program=ProgramSpec("full", overlap=True)).program.overlap
