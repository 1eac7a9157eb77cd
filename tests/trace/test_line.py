from __future__ import annotations

import json
import math
from collections import OrderedDict, deque
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core.effects import Note, NoteKind
from fedoptima.core.errors import ConfigError
from fedoptima.core.events import Evaluated, TimerFired
from fedoptima.core.messages import TurnOn
from fedoptima.core.method import ServerTraining
from fedoptima.core.serialization import freeze
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.trace.line import encode, text_of
from tests.core.test_serialization import GROWN, TRACED, build
from tests.support.rows import ROWS

from .test_record import eventful


@dataclass(frozen=True, slots=True)
class Stranger:
    name: str


@pytest.mark.parametrize("method", ROWS)
def test_every_record_of_a_run_is_written_as_its_plain_form(method: str) -> None:
    for record in eventful(method).records:
        plain = [record.at, record.node, freeze(record.event), *map(freeze, record.effects)]
        assert record.to_line() == encode(plain)


@pytest.mark.parametrize("cls", TRACED)
def test_every_class_in_a_trace_is_written_as_its_plain_form(cls: type) -> None:
    value = build(cls)
    assert text_of(value) == encode(freeze(value))


@pytest.mark.parametrize(
    "value",
    [
        *(0, -1, 2**80, True, False, None, 0.1, -0.0, 1e300, 1e-7, math.inf, -math.inf),
        *((), ("a",), [1, (2, 3)], deque([1]), {"a": (1,)}, OrderedDict(a=1)),
        *(Note(NoteKind.PEER_DROPPED, NodeId("d")), ServerTraining.SHARED, TurnOn(), {1: 2}),
        Evaluated(3, (("accuracy", 1.0), ("loss", math.inf))),
        Payload(PayloadId("d/0/1"), 5, value=object()),
        *GROWN,
    ],
)
def test_every_kind_of_value_is_written_as_its_plain_form(value: object) -> None:
    assert text_of(value) == encode(freeze(value))


def test_a_value_that_is_no_number_is_written_as_json_does() -> None:
    assert text_of(math.nan) == "NaN" == json.dumps(math.nan)


@given(st.text() | st.floats() | st.integers())
def test_any_text_and_number_is_written_as_its_plain_form(value: object) -> None:
    assert text_of(value) == encode(freeze(value))
    if isinstance(value, str):
        assert text_of(TimerFired(value)) == encode(freeze(TimerFired(value)))


def test_a_class_that_was_never_registered_is_refused_like_in_a_snapshot() -> None:
    with pytest.raises(ConfigError, match="Stranger cannot be stored"):
        text_of(Stranger("x"))
