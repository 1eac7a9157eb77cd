"""A device's steps against the same steps written out in plain torch."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedoptima.core.errors import InvariantBroken, TrainingDiverged
from fedoptima.core.jobs import (
    AuxiliaryStep,
    Backward,
    ExportModel,
    Forward,
    FullStep,
    Merge,
    ServerStep,
    SkipStep,
)
from fedoptima.core.method import ServerTraining
from fedoptima.core.types import NodeId, PayloadId
from fedoptima.engine.device import DeviceEngine
from fedoptima.engine.payloads import unpack
from fedoptima.models.transformer import transformer
from tests.engine.bench import (
    RATE,
    Bench,
    close,
    dense_model,
    plain_steps,
    same,
    samples,
    sgd,
    state,
    whole,
)


def test_a_forward_pass_hands_out_activations_and_labels() -> None:
    bench = Bench(dense_model(), samples())
    sent = unpack(bench.at("d", Forward(3)).result)
    inputs, labels = bench.batch(3)
    assert sent.keys() == {"activations.0", "labels"}
    assert torch.equal(sent["activations.0"], bench.workload.model[0](inputs))
    assert torch.equal(sent["labels"], labels)
    assert not sent["activations.0"].requires_grad


def test_a_skipped_step_leaves_the_weights_as_they_are_and_keeps_nothing() -> None:
    bench = Bench(dense_model(), samples())
    before = state(bench.devices["d"])
    bench.at("d", Forward(0))
    done = bench.at("d", SkipStep(0))
    assert same(state(bench.devices["d"]), before)
    assert done.samples == 7
    book, _ = bench.devices["d"].save()
    assert book["waiting"] == []


def test_an_auxiliary_step_is_a_step_down_the_local_loss() -> None:
    bench = Bench(dense_model(), samples())
    first = unpack(bench.first_model)
    bench.at("d", Forward(0))
    done = bench.at("d", AuxiliaryStep(0))

    device_side = deepcopy(bench.workload.model)[0]
    weight = first["aux.dense.linear.weight"].clone().requires_grad_()
    bias = first["aux.dense.linear.bias"].clone().requires_grad_()
    inputs, labels = bench.batch(0)
    logits = torch.nn.functional.linear(device_side(inputs), weight, bias)
    cross_entropy(logits, labels).backward()
    torch.optim.SGD([*device_side.parameters(), weight, bias], lr=RATE).step()

    expected = {
        **{f"0.{name}": tensor for name, tensor in device_side.state_dict().items()},
        "aux.dense.linear.weight": weight.detach(),
        "aux.dense.linear.bias": bias.detach(),
    }
    assert same(state(bench.devices["d"]), expected)
    assert done.samples == 7


def test_a_full_step_is_a_step_of_the_plain_model() -> None:
    bench = whole()
    for step in range(5):  # into the second local epoch
        assert bench.at("d", FullStep(step)).samples == 7
    assert same(state(bench.devices["d"]), plain_steps(bench, 5))


def test_clip_norm_bounds_the_step() -> None:
    bound = 0.01
    bench = whole(optimizer=sgd(clip_norm=bound))
    bench.at("d", FullStep(0))
    before, after = unpack(bench.first_model), state(bench.devices["d"])
    moved = torch.cat([(after[name] - before[name]).flatten() for name in before])
    assert float(moved.norm()) == pytest.approx(RATE * bound, rel=1e-3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_ends_the_round_and_names_the_learning_rate(value: float) -> None:
    model = dense_model()
    nn.init.constant_(model[1][2].bias, value)
    bench = Bench(model, samples(), training=ServerTraining.NONE, auxiliary="none")
    bench.at("d", FullStep(0))
    with pytest.raises(TrainingDiverged, match=r"loss of d .*learning rate 0\.1.*clip_norm"):
        bench.at("d", ExportModel())


def test_random_numbers_of_a_step_do_not_depend_on_what_others_draw() -> None:
    torch.manual_seed(0)
    model = transformer(
        layers=2, heads=2, embedding=8, hidden=8, vocabulary=12, length=6, classes=3, dropout=0.5
    )
    data = torch.randint(0, 12, (28, 6)), torch.arange(28) % 3
    states = []
    for noise in (1, 2):
        bench = Bench(model, data, auxiliary="default")
        for step in range(2):
            torch.manual_seed(noise)  # another node was at work
            bench.at("d", Forward(step))
            torch.manual_seed(noise)
            bench.at("d", AuxiliaryStep(step))
        states.append(state(bench.devices["d"]))
    assert same(*states)


def test_micro_batches_add_up_to_the_whole_batch_on_both_sides() -> None:
    results = []
    for parts in (1, 3):  # seven samples: three, two, two
        bench = Bench(dense_model(), samples(), auxiliary="none")
        sizes = []
        sent = [bench.at("d", Forward(0, part, parts)).result for part in range(parts)]
        for part in range(parts):
            step = ServerStep(NodeId("d"), 1, 0, sent[part], 0.0, True, part, parts)
            back = bench.at_server(step)
            sizes.append(back.samples)
            last = part == parts - 1
            bench.at("d", Backward(0, part, back.result, apply=last, parts=parts))
        assert sizes == ([7] if parts == 1 else [3, 2, 2])
        results.append((state(bench.devices["d"]), bench.server.export()))
    (device, server), (device_in_parts, server_in_parts) = results
    assert close(device, device_in_parts)
    assert close(server, server_in_parts)
    assert not same(device, unpack(bench.first_model))


def test_a_masked_activation_crosses_and_both_sides_learn_as_the_plain_model_does() -> None:
    torch.manual_seed(0)
    model = transformer(
        layers=2, heads=2, embedding=8, hidden=8, vocabulary=12, length=6, classes=3, dropout=0.0
    )
    tokens = torch.randint(1, 12, (28, 6))
    tokens[::2, 4:] = 0  # padding
    bench = Bench(model, (tokens, torch.arange(28) % 3), auxiliary="none")
    sent = bench.at("d", Forward(0)).result
    assert unpack(sent).keys() == {"activations.0", "activations.1", "labels"}
    assert unpack(sent)["activations.1"].dtype == torch.bool
    back = bench.at_server(ServerStep(NodeId("d"), 1, 0, sent, 0.0, True)).result
    assert unpack(back).keys() == {"activations.0"}  # a mask has no gradient
    bench.at("d", Backward(0, 0, back))

    plain = deepcopy(model)
    inputs, labels = bench.batch(0)
    cross_entropy(plain(inputs), labels).backward()
    torch.optim.SGD(plain.parameters(), lr=RATE).step()
    learned = {**bench.server.export(), **state(bench.devices["d"])}
    assert same(learned, plain.state_dict())


@pytest.mark.parametrize("job", [FullStep(0), ExportModel()])
def test_work_before_preparing_is_our_own_mistake(job: FullStep | ExportModel) -> None:
    bench = whole()
    engine = DeviceEngine(bench.workload, NodeId("new"), bench.loaders["d"])
    with pytest.raises(InvariantBroken, match="without having prepared"):
        engine.execute(job, PayloadId("x"))


def test_a_servers_job_is_refused() -> None:
    with pytest.raises(InvariantBroken, match="does not run Merge"):
        whole().at("d", Merge(0.0, (), ()))
