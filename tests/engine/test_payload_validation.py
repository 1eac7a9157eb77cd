"""What the engines let in from the network, before a core or a job: names, shapes, types."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedoptima.core.errors import ProtocolViolation
from fedoptima.core.jobs import Forward
from fedoptima.core.messages import (
    ActivationBatch,
    Failed,
    GlobalModel,
    Join,
    Message,
    ModelUpdate,
    TurnOn,
)
from fedoptima.core.method import ServerTraining
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.engine.device import DeviceEngine
from fedoptima.engine.payloads import Tensors, unpack
from fedoptima.engine.server import ServerEngine
from fedoptima.tasks.ready import dense
from tests.engine.bench import Bench, dense_model, payload, samples
from tests.engine.masks import masked_bench
from tests.engine.sent import batch, handed_in, part, update

NOTHING = Payload(PayloadId("x"), 0)


@pytest.mark.parametrize("delta", [False, True])
def test_what_a_device_hands_in_is_admitted(bench: Bench, delta: bool) -> None:
    bench.server.admit(handed_in(update(bench, delta=delta)))


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {n: t for n, t in tensors.items() if n != name}


def with_tensor(name: str, tensor: Tensor) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: tensor}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (without("0.0.bias"), "'0.0.bias' is missing"),
        (with_tensor("1.0.bias", torch.zeros(5)), "'1.0.bias' is not the plan's"),
        (with_tensor("0.0.bias", torch.zeros(9)), r"'0.0.bias' is \(9,\) torch.float32, not \(8,"),
        (with_tensor("0.0.bias", torch.zeros(1, 8)), r"is \(1, 8\)"),
        (with_tensor("0.0.bias", torch.zeros(8).double()), "float64, not .* torch.float32"),
        (lambda _: {}, "is missing"),
    ],
)
def test_an_update_of_another_model_is_refused(
    bench: Bench, change: Callable[[Tensors], Tensors], complaint: str
) -> None:
    with pytest.raises(ProtocolViolation, match=complaint):
        bench.server.admit(handed_in(change(update(bench))))


def test_an_update_without_tensors_is_refused(bench: Bench) -> None:
    with pytest.raises(ProtocolViolation, match="missing"):
        bench.server.admit(ModelUpdate(0, 7, NOTHING))


def test_the_batches_a_device_sends_are_admitted(bench: Bench) -> None:
    bench.server.admit(ActivationBatch(0, bench.at("d", Forward(0)).result))
    for number in range(3):
        sent = bench.at("d", Forward(1, number, 3)).result
        bench.server.admit(ActivationBatch(1, sent, number, 3))


def test_a_smaller_batch_is_admitted_since_a_device_may_have_less_data(bench: Bench) -> None:
    labels = torch.zeros(2, dtype=torch.int64)
    bench.server.admit(batch(**{"activations.0": torch.zeros(2, 8), "labels": labels}))


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (batch(extra=torch.zeros(7)), "'extra' is not the plan's"),
        (batch(share=torch.tensor(1.0)), "'share' is not the plan's"),
        (ActivationBatch(0, NOTHING), "missing"),
        (ActivationBatch(0, payload(labels=torch.zeros(7, dtype=torch.int64))), "is missing"),
        (batch(**{"activations.0": torch.zeros(7, 9)}), r"is \(7, 9\) .* not \(7, 8\)"),
        (batch(**{"activations.0": torch.zeros(6, 8)}), r"is \(6, 8\)"),
        (batch(**{"activations.0": torch.zeros(7, 8).half()}), "float16"),
        (batch(labels=torch.arange(6) % 3), r"is \(7, 8\) .* not \(6, 8\)"),
        (batch(labels=torch.zeros(7)), "'labels' is .*float32, not"),
        (batch(labels=torch.zeros(7, dtype=torch.int32)), "'labels' is .*int32, not"),
        (batch(labels=torch.zeros(7, 1, dtype=torch.int64)), r"'labels' is \(7, 1\)"),
        (batch(labels=torch.full((7,), 3)), "labels from 3 to 3 for 3 classes"),
        (batch(labels=torch.tensor([0, 1, 2, -1, 0, 0, 0])), "labels from -1 to 2"),
        (
            batch(**{"activations.0": torch.zeros(0, 8), "labels": torch.arange(0)}),
            "0 samples in a batch of 1 to 7",
        ),
        (
            batch(**{"activations.0": torch.zeros(8, 8), "labels": torch.arange(8) % 3}),
            "8 samples in a batch of 1 to 7",
        ),
        (part(count=5), "5 samples in a batch of 1 to 4"),
        (part(number=2), "part 2 of 2"),
        (part(number=-1), "part -1 of 2"),
        (part(share=torch.full((1,), 0.5)), "share"),
        (part(share=torch.tensor(1)), "share"),
        (part(share=torch.tensor(float("nan"))), "share"),
        (part(share=torch.tensor(1.5)), "share"),
        (part(share=torch.tensor(0.0)), "share"),
    ],
)
def test_a_batch_of_another_plan_is_refused(
    bench: Bench, message: ActivationBatch, complaint: str
) -> None:
    with pytest.raises(ProtocolViolation, match=complaint):
        bench.server.admit(message)
    for count in range(1, 8):  # batches like those that have come before are looked at quickly
        usual = {"activations.0": torch.zeros(count, 8), "labels": torch.arange(count) % 3}
        bench.server.admit(batch(**usual))
        bench.server.admit(batch(**usual))
    with pytest.raises(ProtocolViolation, match=complaint):
        bench.server.admit(message)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1e9])
def test_one_wrong_value_after_many_batches_in_order_is_found(bench: Bench, wrong: float) -> None:
    for _ in range(3):
        bench.server.admit(batch())
    numbers = torch.zeros(7, 8)
    numbers[3, 5] = wrong
    with pytest.raises(ProtocolViolation, match=r"activations\.0 holds"):
        bench.server.admit(batch(**{"activations.0": numbers}))


def test_a_part_of_a_batch_without_its_share_is_refused(bench: Bench) -> None:
    sent = dict(unpack(part().data))
    del sent["share"]
    with pytest.raises(ProtocolViolation, match="'share' is missing"):
        bench.server.admit(ActivationBatch(0, payload(**sent), 1, 2))


def test_activations_are_refused_where_nothing_trains_on_any() -> None:
    whole = Bench(dense_model(), samples(), training=ServerTraining.NONE, auxiliary="none")
    for server in (whole.server, ServerEngine(whole.workload)):
        with pytest.raises(ProtocolViolation, match="trains on none"):
            server.admit(batch())


def test_before_there_is_a_plan_an_update_of_an_earlier_server_is_let_through(bench: Bench) -> None:
    ServerEngine(bench.workload).admit(handed_in({"anything": torch.zeros(3)}))


@pytest.mark.parametrize("message", [Join(0, 7, 1e9, 1e6), Failed("x"), TurnOn()])
def test_messages_without_tensors_are_the_cores_business(bench: Bench, message: Message) -> None:
    bench.server.admit(message)
    bench.devices["d"].admit(message)


def test_a_restored_server_knows_what_to_expect(bench: Bench) -> None:
    other = ServerEngine(bench.workload)
    other.restore(*bench.server.save())
    other.admit(handed_in(update(bench)))
    with pytest.raises(ProtocolViolation):
        other.admit(batch(labels=torch.full((7,), 3)))


def test_a_mask_that_crosses_the_cut_is_expected_too() -> None:
    bench = masked_bench(lambda inputs: inputs[:, 0] > 0, lambda out, mask: out * mask[:, None])
    sent = bench.at("d", Forward(0)).result
    bench.server.admit(ActivationBatch(0, sent))
    wrong = {**unpack(sent), "activations.1": unpack(sent)["activations.1"].long()}
    with pytest.raises(ProtocolViolation, match=r"activations.1.*int64, not \(7,\) torch.bool"):
        bench.server.admit(ActivationBatch(0, payload(**wrong)))


def test_a_device_takes_the_model_it_has_prepared_for_and_no_other(bench: Bench) -> None:
    device = bench.devices["d"]
    device.admit(GlobalModel(1, 0.0, bench.first_model))
    other = {**unpack(bench.first_model), "0.0.bias": torch.zeros(9)}
    wrong = GlobalModel(1, 0.0, payload(**other))
    with pytest.raises(ProtocolViolation, match=r"'0.0.bias' is \(9,\)"):
        device.admit(wrong)
    DeviceEngine(bench.workload, NodeId("new"), bench.loaders["d"]).admit(wrong)  # before Prepare


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_a_share_of_a_type_that_does_not_mix_with_a_loss_is_refused(
    bench: Bench, dtype: torch.dtype
) -> None:
    with pytest.raises(ProtocolViolation, match="share"):
        bench.server.admit(part(share=torch.tensor(0.5).to(dtype)))


# ---- labels of other tasks -----------------------------------------------------------------------


def pixel_bench() -> Bench:
    """Labels of 2 x 2 pixels, of which some are ignored."""
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 3, 1))
    inputs, labels = torch.randn(20, 1, 2, 2), torch.randint(3, (20, 2, 2))
    labels[:, 0, 0] = -100
    return Bench(model, (inputs, labels), task=dense())


def pixel_batch(**changes: Tensor) -> ActivationBatch:
    labels = torch.zeros(7, 2, 2, dtype=torch.int64)
    labels[0, 0, 0] = -100
    tensors = {"activations.0": torch.zeros(7, 4, 2, 2), "labels": labels}
    return ActivationBatch(0, payload(**{**tensors, **changes}))


def test_labels_of_pixels_are_admitted() -> None:
    bench = pixel_bench()
    message = pixel_batch()
    bench.server.admit(message, bench.server.inspect(message))
    bench.server.admit(message)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(7, dtype=torch.int64), r"not \(7, 2, 2\)"),
        (torch.zeros(7, 2, 2), r"not \(7, 2, 2\) torch\.int64"),
        (torch.full((7, 2, 2), 3), "labels from 3 to 3 for 3 classes"),
        (torch.full((7, 2, 2), -5), "labels from -5 to -5 for 3 classes"),
    ],
)
def test_labels_that_are_not_those_of_the_task_are_refused(labels: Tensor, message: str) -> None:
    bench = pixel_bench()
    with pytest.raises(ProtocolViolation, match=message):
        bench.server.admit(pixel_batch(labels=labels))
