"""Messages arrive as they were sent."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import get_args

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedoptima.core import messages as core
from fedoptima.core.errors import InvariantBroken
from fedoptima.core.messages import Message
from fedoptima.core.ranges import MOST, MOST_SAMPLES
from fedoptima.core.types import Payload, PayloadId
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.codec import BULK, URGENT, encode, lane_of
from tests.runtime.wire.mail import assert_arrived, frames_of, payload, received

NATURAL = st.integers(0, MOST)
FIGURES = st.floats(min_value=1.0, max_value=1e12)
IDENTIFIERS = st.builds("{}/{}/{}".format, st.sampled_from(["phone", "Gerät"]), NATURAL, NATURAL)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
PAYLOADS = st.one_of(
    st.builds(Payload, IDENTIFIERS, st.just(0)),
    st.lists(st.integers(0, 100), max_size=4).map(lambda sizes: payload(*sizes)),
)
PROGRAMS = st.builds(
    core.ProgramSpec, st.sampled_from(["full", "gradient"]), NATURAL, st.booleans()
)
MESSAGES: dict[type[Message], st.SearchStrategy[Message]] = {
    core.Join: st.builds(
        core.Join,
        NATURAL,
        st.integers(1, MOST_SAMPLES),
        FIGURES,
        FIGURES,
        st.integers(-1, MOST),
        st.booleans(),
        st.none() | IDENTIFIERS,
        NATURAL,
    ),
    core.ActivationBatch: st.integers(1, 100).flatmap(
        lambda parts: st.builds(
            core.ActivationBatch, NATURAL, PAYLOADS, st.integers(0, parts - 1), st.just(parts)
        )
    ),
    core.ModelUpdate: st.builds(core.ModelUpdate, NATURAL, NATURAL, PAYLOADS),
    core.Failed: st.builds(core.Failed, TEXTS, st.booleans()),
    core.Assignment: st.builds(core.Assignment, TEXTS, PROGRAMS, st.integers(1, MOST)),
    core.TurnOn: st.just(core.TurnOn()),
    core.HandIn: st.just(core.HandIn()),
    core.GradientBatch: st.builds(core.GradientBatch, NATURAL, NATURAL, PAYLOADS),
    core.GlobalModel: st.builds(core.GlobalModel, NATURAL, st.floats(0, 1), PAYLOADS),
    core.Stop: st.builds(core.Stop, TEXTS),
}


@pytest.mark.parametrize("kind", get_args(Message), ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_message_arrives_as_it_was_sent(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(MESSAGES[kind])
    size = data.draw(st.integers(1, 500))
    (found,) = received(frames_of(message, size))
    assert_arrived(found, message)


@given(message=MESSAGES[core.ActivationBatch], inline=st.integers(0, 2000))
def test_few_bytes_of_tensors_come_in_the_head(message: Message, inline: int) -> None:
    outgoing = encode(message, inline=inline)
    chunks = list(outgoing.chunks(64))
    assert not chunks or outgoing.nbytes > inline
    (found,) = received([outgoing.head, *chunks])
    assert_arrived(found, message)


@pytest.mark.parametrize("sizes", [(5, 0, 70), (20_000,), (16_000, 400)])
def test_tensors_lie_as_torch_would_have_put_them(sizes: tuple[int, ...]) -> None:
    message = core.ModelUpdate(1, 1, payload(*sizes))
    for inline in (0, 1 << 20):
        outgoing = encode(message, inline=inline)
        (found,) = received([outgoing.head, *outgoing.chunks(10_000)], limit=1 << 20)
        assert_arrived(found, message)
        assert all(tensor.data_ptr() % 64 == 0 for tensor in found.data.value.values())


def test_a_payload_without_tensors_is_not_one_with_none_in_it() -> None:
    empty, without = (core.ModelUpdate(1, 1, Payload(PayloadId("a"), 0, v)) for v in ({}, None))
    assert received(frames_of(empty))[0].data.value == {}
    assert received(frames_of(without))[0].data.value is None


def test_an_error_that_is_no_text_gets_through() -> None:
    (found,) = received(frames_of(core.Failed("no such file: bad\udcff.csv")))
    assert found == core.Failed("no such file: bad?.csv")


def test_the_wire_has_exactly_the_fields_of_the_messages() -> None:
    assert {oneof.name: len(oneof.fields) for oneof in wire.Head.DESCRIPTOR.oneofs} == {
        "message": len(get_args(Message))
    }
    for cls in (*get_args(Message), core.ProgramSpec, Payload):
        written = [field.name for field in getattr(wire, cls.__name__).DESCRIPTOR.fields]
        assert written == [field.name for field in fields(cls) if field.name != "value"], cls


def test_the_head_and_chunks_of_a_message_are_a_safetensors_file() -> None:
    message = core.ModelUpdate(1, 1, payload(5, 0, 70))
    outgoing = encode(message)
    data = b"".join(part for chunk in outgoing.chunks(64) for part in chunk.parts)
    assert outgoing.nbytes == len(data) == 300
    found = safetensors.torch.load(outgoing.head.head.header + data)
    assert all(torch.equal(found[name], t) for name, t in message.data.value.items())


def test_small_tensors_travel_together() -> None:
    sizes = [
        chunk.nbytes for chunk in encode(core.ModelUpdate(1, 1, payload(*[1] * 50))).chunks(64)
    ]
    assert sizes == [64, 64, 64, 8]


def test_tensors_are_looked_at_only_when_their_turn_comes() -> None:
    message = core.ModelUpdate(1, 1, payload(16, 16))
    chunks = encode(message).chunks(64)
    next(chunks)
    message.data.value["layer.1"].fill_(7.0)
    assert b"".join(next(chunks).parts) == bytes(memoryview(torch.full((16,), 7.0).numpy()))


def test_lanes_are_put_together_each_by_itself() -> None:
    model, batch = core.ModelUpdate(1, 1, payload(40)), core.ActivationBatch(2, payload(30))
    urgent, bulk = frames_of(model), frames_of(batch)
    mixed = [bulk[0], urgent[0], bulk[1], *urgent[1:], *frames_of(core.Failed("x")), *bulk[2:]]
    found = received(mixed)
    assert [type(message) for message in found] == [
        core.ModelUpdate,
        core.Failed,
        core.ActivationBatch,
    ]
    assert_arrived(found[0], model)
    assert_arrived(found[2], batch)


def test_only_activations_and_gradients_are_bulk() -> None:
    data = payload(1)
    assert lane_of(core.ActivationBatch(0, data)) == lane_of(core.GradientBatch(0, 0, data)) == BULK
    assert lane_of(core.GlobalModel(0, 0.0, data)) == lane_of(core.TurnOn()) == URGENT


def test_a_payload_that_lies_about_its_size_is_our_own_mistake() -> None:
    with pytest.raises(InvariantBroken, match="12 bytes, not 13"):
        encode(core.ModelUpdate(1, 1, replace(payload(3), nbytes=13)))
