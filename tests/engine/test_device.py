"""A device's jobs against the same steps written out in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, fields

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedoptima.config.training import ScheduleConfig
from fedoptima.core.errors import InvariantBroken, TrainingDiverged
from fedoptima.core.jobs import (
    AuxiliaryStep,
    Backward,
    ExportModel,
    Forward,
    FullStep,
    LoadModel,
    Merge,
    Prepare,
    Rebase,
    ServerStep,
    SkipStep,
)
from fedoptima.core.messages import GlobalModel
from fedoptima.core.method import ServerTraining
from fedoptima.core.types import NodeId, PayloadId
from fedoptima.engine.device import DeviceEngine
from fedoptima.engine.network import Network
from fedoptima.engine.payloads import Tensors, unpack
from fedoptima.engine.server import ServerEngine
from fedoptima.engine.workload import Workload
from fedoptima.models.transformer import transformer
from tests.engine.bench import RATE, Bench, close, dense_model, same, samples, sgd, state


def whole(**changes: object) -> Bench:
    """A device that trains the whole model."""
    arguments = {"training": ServerTraining.NONE, "auxiliary": "none", **changes}
    return Bench(dense_model(), samples(), **arguments)  # type: ignore[arg-type]


def plain_steps(bench: Bench, steps: int, **optimizer: float | bool) -> Tensors:
    """The same as ``steps`` full steps, in plain torch."""
    model = deepcopy(bench.workload.model)
    sgd_ = torch.optim.SGD(model.parameters(), **{"lr": RATE, **optimizer})  # type: ignore[arg-type]
    for step in range(steps):
        inputs, labels = bench.batch(step)
        sgd_.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        sgd_.step()
    return model.state_dict()


@dataclass(frozen=True)
class Interrupted(Workload):
    """A workload that calls somebody while a device prepares."""

    call: Callable[[], None] = lambda: None

    def networks(self, plan: str) -> dict[str, Network]:
        self.call()
        return super().networks(plan)


def test_a_model_may_arrive_while_a_device_prepares() -> None:
    bench = Bench(dense_model(), samples())
    calls: list[Callable[[], None]] = []
    known = {field.name: getattr(bench.workload, field.name) for field in fields(bench.workload)}
    workload = Interrupted(**known, call=lambda: calls.pop()() if calls else None)
    device = DeviceEngine(workload, NodeId("d"), bench.loaders["d"])
    calls.append(lambda: device.admit(GlobalModel(1, 0.0, bench.first_model)))
    device.execute(Prepare(bench.plan), PayloadId("job/0/1"))
    assert not calls, "nothing arrived meanwhile"
    device.admit(GlobalModel(1, 0.0, bench.first_model))


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


def trained(bench: Bench, *steps: int) -> None:
    for step in steps:
        bench.at("d", Forward(step))
        bench.at("d", AuxiliaryStep(step))


def test_what_was_learned_since_the_hand_in_is_carried_over_onto_the_answer() -> None:
    bench = Bench(dense_model(), samples())
    trained(bench, 0)
    sent = unpack(bench.at("d", ExportModel(keep=True)).result)
    handed_in = {name: tensor.clone() for name, tensor in sent.items()}
    trained(bench, 1)
    own = {name: tensor.clone() for name, tensor in state(bench.devices["d"]).items()}
    answer = unpack(bench.first_model)  # a refused update: there is nothing of it in the answer
    bench.at("d", Rebase(bench.first_model, 0.5))
    expected = {name: answer[name] + (own[name] - handed_in[name]) for name in own}
    assert same(state(bench.devices["d"]), expected)
    assert same(sent, handed_in)  # what was handed in has not been written to
    assert any(not torch.equal(expected[name], answer[name]) for name in expected)


def test_a_device_that_has_learned_nothing_since_has_exactly_the_answer() -> None:
    bench = Bench(dense_model(), samples())
    trained(bench, 0)
    bench.at("d", ExportModel(keep=True))
    bench.at("d", Rebase(bench.first_model, 0.0))
    assert same(state(bench.devices["d"]), dict(unpack(bench.first_model)))


def test_a_device_restored_before_the_answer_ends_as_the_unbroken_one() -> None:
    benches = [Bench(dense_model(), samples()) for _ in range(2)]
    for bench in benches:
        trained(bench, 0)
        bench.at("d", ExportModel(keep=True))
        trained(bench, 1)
    saved = benches[1].devices["d"].save()
    trained(benches[1], 2)
    benches[1].devices["d"].restore(*saved)
    for bench in benches:
        bench.at("d", Rebase(bench.first_model, 0.0))
        trained(bench, 2)
    assert same(state(benches[0].devices["d"]), state(benches[1].devices["d"]))


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


def test_momentum_stays_with_its_owner_when_a_model_is_loaded() -> None:
    bench = whole(optimizer=sgd(momentum=0.9))
    bench.at("d", FullStep(0))
    bench.at("d", LoadModel(bench.first_model, 0.0))
    bench.at("d", FullStep(1))

    model = deepcopy(bench.workload.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    for step in range(2):
        model.load_state_dict(unpack(bench.first_model))
        inputs, labels = bench.batch(step)
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    assert same(state(bench.devices["d"]), model.state_dict())


def test_reset_on_load_forgets_the_momentum() -> None:
    bench = whole(optimizer=sgd(momentum=0.9, reset_on_load=True))
    bench.at("d", FullStep(4))
    bench.at("d", LoadModel(bench.first_model, 0.0))
    for step in range(2):
        bench.at("d", FullStep(step))
    assert same(state(bench.devices["d"]), plain_steps(bench, 2, momentum=0.9))


def test_the_learning_rate_follows_the_progress_that_comes_with_a_model() -> None:
    bench = whole(schedule=ScheduleConfig(kind="linear"))
    bench.at("d", LoadModel(bench.first_model, 0.75))
    bench.at("d", FullStep(0))
    assert same(state(bench.devices["d"]), plain_steps(bench, 1, lr=RATE * 0.25))


def test_clip_norm_bounds_the_step() -> None:
    bound = 0.01
    bench = whole(optimizer=sgd(clip_norm=bound))
    bench.at("d", FullStep(0))
    before, after = unpack(bench.first_model), state(bench.devices["d"])
    moved = torch.cat([(after[name] - before[name]).flatten() for name in before])
    assert float(moved.norm()) == pytest.approx(RATE * bound, rel=1e-3)


def test_the_next_round_does_not_change_an_exported_model() -> None:
    bench = whole()
    bench.at("d", FullStep(0))
    exported = unpack(bench.at("d", ExportModel()).result)
    kept = {name: tensor.clone() for name, tensor in exported.items()}
    bench.at("d", LoadModel(bench.first_model, 0.0))
    bench.at("d", FullStep(1))
    assert same(exported, kept)
    assert not same(exported, state(bench.devices["d"]))


def test_a_device_holds_no_model_after_its_export() -> None:
    bench = whole()
    bench.at("d", FullStep(0))
    bench.at("d", ExportModel())
    assert not state(bench.devices["d"])


def test_a_loaded_model_is_copied_too() -> None:
    bench = whole()
    kept = {name: tensor.clone() for name, tensor in unpack(bench.first_model).items()}
    bench.at("d", FullStep(0))
    assert same(unpack(bench.first_model), kept)


def test_a_delta_is_the_change_since_the_model_was_loaded() -> None:
    bench = whole()
    bench.at("d", FullStep(0))
    after = state(bench.devices["d"])
    delta = unpack(bench.at("d", ExportModel(delta=True)).result)
    before = unpack(bench.first_model)
    assert same(delta, {name: after[name] - before[name] for name in after})


def test_the_model_given_is_never_trained_itself() -> None:
    bench = whole()
    before = deepcopy(bench.workload.model.state_dict())
    bench.at("d", FullStep(0))
    assert same(bench.workload.model.state_dict(), before)


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


def test_a_new_model_drops_what_waits_for_its_backward_pass() -> None:
    bench = Bench(dense_model(), samples(), auxiliary="none")
    sent = bench.at("d", Forward(0)).result
    back = bench.at_server(ServerStep(NodeId("d"), 1, 0, sent, 0.0, True)).result
    bench.at("d", LoadModel(bench.first_model, 0.0))
    with pytest.raises(KeyError):
        bench.at("d", Backward(0, 0, back))


@pytest.mark.parametrize("job", [FullStep(0), ExportModel()])
def test_work_before_preparing_is_our_own_mistake(job: FullStep | ExportModel) -> None:
    bench = whole()
    engine = DeviceEngine(bench.workload, NodeId("new"), bench.loaders["d"])
    with pytest.raises(InvariantBroken, match="without having prepared"):
        engine.execute(job, PayloadId("x"))


def test_a_servers_job_is_refused() -> None:
    with pytest.raises(InvariantBroken, match="does not run Merge"):
        whole().at("d", Merge(0.0, (), ()))


@pytest.mark.parametrize("when", ["before the forward pass", "before the auxiliary step"])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_restored_device_goes_on_bit_for_bit(when: str, name: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3)),
        torch.nn.Linear(8, 3),
    )
    bench = Bench(model, samples(), optimizer=sgd(name=name, momentum=0.9), auxiliary="default")
    device = bench.devices["d"]
    bench.at("d", Forward(0))
    bench.at("d", AuxiliaryStep(0))
    if when == "before the auxiliary step":
        bench.at("d", Forward(1))
    books, tensors = device.save()
    tensors = {key: tensor.clone() for key, tensor in tensors.items()}

    other = DeviceEngine(bench.workload, NodeId("d"), bench.loaders["d"])
    other.restore(books, tensors)
    for engine in (device, other):
        torch.manual_seed(id(engine) % 1000)
        if when == "before the forward pass":
            engine.execute(Forward(1), PayloadId("x"))
        engine.execute(AuxiliaryStep(1), PayloadId("x"))
        engine.execute(Forward(2), PayloadId("x"))
        engine.execute(AuxiliaryStep(2), PayloadId("x"))
    assert same(state(device), state(other))


def test_both_sides_are_restored_in_the_middle_of_a_mini_batch() -> None:
    ends = []
    for broken in (False, True):
        bench = Bench(dense_model(), samples(), auxiliary="none", optimizer=sgd(momentum=0.9))
        sent = [bench.at("d", Forward(0, part, 3)).result for part in range(3)]
        for part in range(3):
            if broken:  # gradients of earlier parts are there, graphs of later ones too
                books, tensors = bench.devices["d"].save()
                bench.devices["d"] = DeviceEngine(bench.workload, NodeId("d"), bench.loaders["d"])
                bench.devices["d"].restore(books, tensors)
                books, tensors = bench.server.save()
                bench.server = ServerEngine(bench.workload)
                bench.server.restore(books, tensors)
            step = ServerStep(NodeId("d"), 1, 0, sent[part], 0.0, True, part, 3)
            back = bench.at_server(step).result
            bench.at("d", Backward(0, part, back, apply=part == 2, parts=3))
        ends.append((state(bench.devices["d"]), bench.server.export()))
    (device, server), (restored_device, restored_server) = ends
    assert same(device, restored_device)
    assert same(server, restored_server)


def test_a_device_prepares_again_as_if_new() -> None:
    bench = whole(optimizer=sgd(momentum=0.9))
    bench.at("d", FullStep(0))
    bench.devices["d"].reset()
    bench.at("d", Prepare(bench.plan))
    bench.at("d", LoadModel(bench.first_model, 0.0))
    bench.at("d", FullStep(0))
    assert same(state(bench.devices["d"]), plain_steps(bench, 1, momentum=0.9))
