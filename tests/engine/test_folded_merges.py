"""The server's engine adds updates up, and a merge takes their mean."""

from __future__ import annotations

import pytest
import torch

from fedoptima.core.codecs import Codecs
from fedoptima.core.jobs import AddUp, FoldedMerge, OpenCopy, Part, ServerStep
from fedoptima.core.method import ServerTraining
from fedoptima.core.robust import faults
from fedoptima.core.types import NodeId, Payload
from fedoptima.engine.faults import WHY
from fedoptima.engine.flat import FlatTensors
from fedoptima.engine.payloads import Tensors, unpack
from fedoptima.engine.server import ServerEngine
from tests.engine.bench import Bench, dense_model, payload, same, samples

A, B = NodeId("a"), NodeId("b")


def bench() -> Bench:
    return Bench(dense_model(), samples())


def updates(bench: Bench) -> dict[NodeId, Tensors]:
    first = unpack(bench.first_model)
    return {
        A: {name: tensor + 1 for name, tensor in first.items()},
        B: {name: tensor * 3 for name, tensor in first.items()},
    }


def added(server: ServerEngine, device: NodeId, update: Tensors, weight: int) -> None:
    server.execute(AddUp(Part(device, weight, payload(**update))), payload().id)


def merge(*shares: tuple[NodeId, float]) -> FoldedMerge:
    """Of updates whose tensors are gone."""
    parts = tuple(Part(device, share, Payload(payload().id, 100)) for device, share in shares)
    return FoldedMerge(0.0, parts, ())


def mean(one: Tensors, other: Tensors) -> Tensors:
    """At one to three."""
    return {n: ((t.double() + 3 * other[n].double()) / 4).to(t.dtype) for n, t in one.items()}


def test_a_merge_of_what_was_added_up_is_the_mean_and_the_next_sum_begins_anew() -> None:
    desk = bench()
    given = updates(desk)
    for _ in range(2):
        added(desk.server, A, given[A], 10)
        added(desk.server, B, given[B], 30)
        merged = unpack(desk.at_server(merge((A, 0.25), (B, 0.75))).result)
        assert same(merged, mean(given[A], given[B]))
    assert isinstance(desk.server._global, FlatTensors)  # as the next merge wants it


def test_a_server_restored_between_two_updates_has_the_first_in_its_sum() -> None:
    desk = bench()
    given = updates(desk)
    added(desk.server, A, given[A], 10)
    books, tensors = desk.server.save()
    other = ServerEngine(desk.workload)
    other.restore(books, {key: tensor.clone() for key, tensor in tensors.items()})
    for server in (desk.server, other):
        added(server, B, given[B], 30)
        server.execute(merge((A, 0.25), (B, 0.75)), payload().id)
    assert same(desk.server.export(), other.export())
    assert same(unpack(other._model(payload().id)), mean(given[A], given[B]))


def test_a_checkpoint_from_before_there_were_sums_is_restored() -> None:
    desk = bench()
    books, tensors = desk.server.save()
    del books["sum"]
    other = ServerEngine(desk.workload)
    other.restore(books, tensors)
    assert not other._sum.totals


def test_an_update_that_cannot_be_added_makes_the_merge_fail() -> None:
    desk = bench()
    given = updates(desk)
    del given[A][next(iter(given[A]))]
    added(desk.server, B, given[B], 30)
    added(desk.server, A, given[A], 10)
    with pytest.raises(Exception) as failure:  # noqa: PT011  (whatever torch or Python says)
        desk.at_server(merge((A, 0.25), (B, 0.75)))
    assert failure.type is not AssertionError


def test_a_device_known_to_be_faulty_is_left_out_and_named_by_the_merge() -> None:
    """On a GPU, where it is known only when somebody asks; here after a checkpoint."""
    desk = Bench(
        dense_model(),
        samples(),
        training=ServerTraining.PER_DEVICE,
        auxiliary="none",
        devices=("a", "b"),
    )
    for device in (A, B):
        desk.at_server(OpenCopy(device, 1))
    hidden, labels = samples(7, 8)
    batch = payload(**{"activations.0": hidden, "labels": labels})
    desk.at_server(ServerStep(B, 1, 0, batch, 0.0, True))
    trained = {name: t.clone() for name, t in desk.server._copies[B].tensors().items()}
    desk.server._faults.restore([A])
    given = updates(desk)
    added(desk.server, A, given[A], 10)
    added(desk.server, B, given[B], 30)
    outcome = desk.at_server(merge((A, 0.25), (B, 0.75)))
    assert faults(outcome.text) == {0: WHY}
    assert same(unpack(outcome.result), given[B])
    assert same(desk.server._shared().tensors(), trained)


def test_a_coded_update_is_decoded_before_it_is_added() -> None:
    desk = Bench(dense_model(), samples(), codecs=Codecs(updates="bfloat16"))
    codec, first = desk.server._update_codec, unpack(desk.first_model)
    coded = codec.encode({name: torch.full_like(tensor, 0.125) for name, tensor in first.items()})
    added(desk.server, A, coded, 10)
    merged = unpack(desk.at_server(merge((A, 1.0))).result)
    assert same(merged, codec.decode(coded, first))
    assert not same(merged, first)
