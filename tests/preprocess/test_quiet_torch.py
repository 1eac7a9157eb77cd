"""What torch says of a model that it cannot follow is not shown; what others say meanwhile is."""

from __future__ import annotations

import logging
import subprocess
import sys
from threading import Thread

import pytest

from fedoptima.preprocess.quiet_torch import quiet_torch
from tests.support.network import DEADLINE

LOOKS_AT_VALUES = """
import torch
from torch import nn
from fedoptima.core.errors import ConfigError
from fedoptima.preprocess.cuts import cuttable

class Looks(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, values):
        hidden = self.a(values)
        return self.b(hidden * 2 if hidden.sum() > 1 else hidden)

assert cuttable(Looks(), torch.rand(3, 4), "a").after("a") == 1
try:
    cuttable(Looks(), torch.rand(3, 4))
except ConfigError as error:
    print(error)
"""


def test_a_model_that_looks_at_values_is_cut_or_refused_without_a_page_of_graphs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOKS_AT_VALUES],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )
    assert done.stderr == ""
    assert "cannot be followed" in done.stdout


def test_other_threads_are_heard(capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    def speak(who: str) -> None:
        print(who, file=sys.stderr)
        logger.warning(who)

    logger, handler = logging.getLogger("torch.export"), Handler()
    logger.addHandler(handler)
    try:
        with quiet_torch():
            speak("this one")
            other = Thread(target=speak, args=("another",))
            other.start()
            other.join(DEADLINE)
        speak("afterwards")
    finally:
        logger.removeHandler(handler)
    assert heard == ["another", "afterwards"]
    shown = capsys.readouterr().err
    assert "this one" not in shown
    assert "another" in shown
