from __future__ import annotations

import pickle

import pytest
import torch

from fedoptima.core.messages import ActivationBatch, GlobalModel, ModelUpdate, TurnOn
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.runtime.gateway.arena import Block, Stored
from fedoptima.runtime.gateway.compact_messages import compacted, expanded
from fedoptima.runtime.gateway.messages import Arrived, Closed, Deliver, Free, Key
from fedoptima.runtime.wire.tensors import DTYPES

PHONE: Key = (NodeId("phone"), 3)
DATA = Payload(PayloadId("phone/0/7"), 120)
STORED = Stored(
    Block(4096, 8192),
    {**{name: ((2, 3), dtype) for name, dtype in DTYPES.items()}, "none": ((0,), torch.float32)},
)
FREQUENT = [
    Arrived(PHONE, ActivationBatch(7, DATA, 1, 2, 3), STORED),
    Deliver(PHONE, TurnOn(), None),
    Free((Block(0, 4096), Block(8192, 4096))),
]
OTHERS = [
    Arrived(PHONE, ActivationBatch(7, DATA), None),
    Arrived(PHONE, ModelUpdate(1, 10, DATA), STORED),
    Deliver(PHONE, GlobalModel(1, 0.5, DATA), STORED),
    Closed(PHONE, "hung up"),
]


@pytest.mark.parametrize("told", [*FREQUENT, *OTHERS], ids=str)
def test_what_is_shortened_is_heard_in_full(told: object) -> None:
    assert expanded(pickle.loads(pickle.dumps(compacted(told)))) == told


@pytest.mark.parametrize("told", FREQUENT, ids=str)
def test_what_is_sent_with_every_batch_is_short(told: object) -> None:
    assert len(pickle.dumps(compacted(told))) < len(pickle.dumps(told)) / 1.5
