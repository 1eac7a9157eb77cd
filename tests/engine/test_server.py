"""The server's jobs against the same steps written out in plain torch."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedoptima.config.training import OptimizerConfig, ScheduleConfig
from fedoptima.core.errors import InvariantBroken, TrainingDiverged
from fedoptima.core.jobs import (
    CloseCopy,
    ExportModel,
    Forward,
    FullStep,
    Merge,
    OpenCopy,
    Part,
    Prepare,
    ServerOptimizer,
    ServerStep,
)
from fedoptima.core.method import ServerTraining
from fedoptima.core.types import NodeId
from fedoptima.engine.payloads import Tensors, unpack
from fedoptima.engine.server import ServerEngine
from tests.engine.bench import RATE, Bench, dense_model, payload, same, samples, sgd

D = NodeId("d")


def activations(seed: int = 0) -> Tensors:
    hidden, labels = samples(7, 8, seed=seed)
    return {"activations.0": hidden, "labels": labels}


def server_step(seed: int = 0, origin: NodeId = D, progress: float = 0.0) -> ServerStep:
    return ServerStep(origin, 1, seed, payload(**activations(seed)), progress, True)


def plain_server_step(model: nn.Module, seed: int, rate: float = RATE) -> torch.Tensor:
    """One step of the server side; returns the loss's gradient by what came in."""
    tensors = activations(seed)
    hidden = tensors["activations.0"].requires_grad_()
    cross_entropy(model[1](hidden), tensors["labels"]).backward()
    torch.optim.SGD(model[1].parameters(), lr=rate).step()
    model.zero_grad()
    assert hidden.grad is not None
    return hidden.grad


def test_a_server_step_is_a_step_of_the_server_side_and_returns_autograds_gradient() -> None:
    bench = Bench(dense_model(), samples())
    plain = deepcopy(bench.workload.model)
    for seed in range(3):
        done = bench.at_server(server_step(seed))
        assert torch.equal(unpack(done.result)["activations.0"], plain_server_step(plain, seed))
        assert done.samples == 7
    assert same(bench.server.export(), plain.state_dict())


def test_a_step_leaves_the_activations_as_they_came() -> None:
    bench = Bench(dense_model(), samples())
    step = server_step()
    bench.at_server(step)
    assert same(unpack(step.data), activations())
    assert not unpack(step.data)["activations.0"].requires_grad


def test_no_gradient_is_returned_to_whom_nobody_asked() -> None:
    bench = Bench(dense_model(), samples())
    plain = deepcopy(bench.workload.model)
    plain_server_step(plain, 0)
    done = bench.at_server(ServerStep(D, 1, 0, payload(**activations()), 0.0))
    assert done.result.nbytes == 0
    assert done.result.value is None
    assert same(bench.server.export(), plain.state_dict())


def test_the_servers_rate_follows_the_progress_of_its_step() -> None:
    bench = Bench(dense_model(), samples(), schedule=ScheduleConfig(kind="linear"))
    plain = deepcopy(bench.workload.model)
    bench.at_server(server_step(progress=0.75))
    plain_server_step(plain, 0, rate=RATE * 0.25)
    assert same(bench.server.export(), plain.state_dict())


def with_batch_norm() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Sequential(nn.Linear(6, 8), nn.Tanh()),
            nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3)),
        )


@pytest.mark.parametrize("optimizer", [sgd(momentum=0.9), sgd(name="adam")], ids=["sgd", "adam"])
@pytest.mark.parametrize("before", [0, 1])
def test_a_step_whose_loss_is_not_finite_is_undone_with_all_it_changed(
    optimizer: OptimizerConfig, before: int
) -> None:
    bench = Bench(with_batch_norm(), samples(), optimizer=optimizer)
    plain = Bench(with_batch_norm(), samples(), optimizer=optimizer)
    tensors = activations()
    tensors["activations.0"][0] = float("nan")
    for seed in range(before):
        bench.at_server(server_step(seed))
        plain.at_server(server_step(seed))
    with pytest.raises(TrainingDiverged, match="which was undone"):
        bench.at_server(ServerStep(D, 1, 0, payload(**tensors), 0.0))
    for seed in range(5, 7):  # momentum and running statistics are as if it had not been
        bench.at_server(server_step(seed))
        plain.at_server(server_step(seed))
    assert same(bench.server.export(), plain.server.export())
    bench.server.evaluate()


def test_a_part_whose_loss_is_not_finite_undoes_the_whole_mini_batch() -> None:
    bench = Bench(with_batch_norm(), samples())
    before = bench.server.export()
    tensors = {**activations(), "share": torch.tensor(0.5)}
    broken = {**tensors, "activations.0": tensors["activations.0"] * float("nan")}
    bench.at_server(ServerStep(D, 1, 0, payload(**broken), 0.0, part=0, parts=2))
    with pytest.raises(TrainingDiverged):
        bench.at_server(ServerStep(D, 1, 0, payload(**tensors), 0.0, part=1, parts=2))
    assert same(bench.server.export(), before)


def test_a_merge_that_is_not_finite_is_not_used() -> None:
    bench = Bench(dense_model(), samples())
    before = bench.server.export()
    update = {name: tensor * float("inf") for name, tensor in unpack(bench.first_model).items()}
    with pytest.raises(TrainingDiverged):
        bench.at_server(Merge(0.5, (Part(D, 0.5, payload(**update)),), (D,)))
    assert same(bench.server.export(), before)


def test_a_model_that_is_not_finite_is_not_saved() -> None:
    bench = Bench(dense_model(), samples())
    bench.server.save()
    bench.server._global["0.0.bias"].fill_(float("nan"))
    with pytest.raises(TrainingDiverged, match="not finite"):
        bench.server.save()


def test_a_merge_answers_with_a_copy_of_the_new_global_model() -> None:
    bench = Bench(dense_model(), samples())
    first = unpack(bench.first_model)
    update = {name: torch.full_like(tensor, 3.0) for name, tensor in first.items()}
    part = Part(D, 0.25, payload(**update))
    merged = unpack(bench.at_server(Merge(0.75, (part,), (D,))).result)
    assert same(merged, {n: t * 0.75 + update[n] * 0.25 for n, t in first.items()})
    kept = {name: tensor.clone() for name, tensor in merged.items()}
    bench.at_server(Merge(0.75, (part,), (D,)))
    assert same(merged, kept)


def test_the_global_model_moves_by_deltas_where_there_is_a_server_optimiser() -> None:
    bench = Bench(dense_model(), samples())
    first = unpack(bench.first_model)
    part = Part(D, 0.5, payload(**{n: torch.ones_like(t) for n, t in first.items()}))
    merged = bench.at_server(Merge(1.0, (part,), (D,), ServerOptimizer(0.2))).result
    assert same(unpack(merged), {n: t + torch.full_like(t, 0.5) * 0.2 for n, t in first.items()})


def copies() -> Bench:
    return Bench(
        dense_model(),
        samples(),
        training=ServerTraining.PER_DEVICE,
        auxiliary="none",
        devices=("a", "b"),
    )


def test_copies_of_the_server_side_are_trained_apart_and_merged_together() -> None:
    bench = copies()
    first = unpack(bench.first_model)
    plain = {}
    for name in ("a", "b"):
        bench.at_server(OpenCopy(NodeId(name), 1))
        plain[name] = deepcopy(bench.workload.model)
    for seed, name in enumerate(("a", "b")):
        done = bench.at_server(server_step(seed, NodeId(name)))
        gradient = plain_server_step(plain[name], seed)
        assert torch.equal(unpack(done.result)["activations.0"], gradient)
    parts = tuple(
        Part(NodeId(name), weight, payload(**first)) for name, weight in (("a", 0.25), ("b", 0.75))
    )
    bench.at_server(Merge(0.0, parts, (NodeId("a"), NodeId("b"))))
    expected = {
        f"1.{name}": tensor * 0.25 + plain["b"][1].state_dict()[name] * 0.75
        for name, tensor in plain["a"][1].state_dict().items()
    }
    whole = bench.server.export()
    assert same({name: whole[name] for name in expected}, expected)
    # Both go on from the merged one.
    grown = deepcopy(bench.workload.model)
    grown.load_state_dict(whole)
    done = bench.at_server(server_step(5, NodeId("b")))
    assert torch.equal(unpack(done.result)["activations.0"], plain_server_step(grown, 5))


def test_a_closed_copy_is_gone_and_a_new_one_begins_with_the_global_side() -> None:
    bench = copies()
    for job in (OpenCopy(NodeId("a"), 1), server_step(0, NodeId("a")), CloseCopy(NodeId("a"))):
        bench.at_server(job)
    with pytest.raises(KeyError):
        bench.at_server(server_step(1, NodeId("a")))
    bench.at_server(OpenCopy(NodeId("a"), 2))
    done = bench.at_server(server_step(1, NodeId("a")))
    fresh = deepcopy(bench.workload.model)
    assert torch.equal(unpack(done.result)["activations.0"], plain_server_step(fresh, 1))


def test_an_evaluation_is_of_both_sides_joined_and_changes_nothing() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)),
        nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 3)),
    )
    bench = Bench(model, samples())
    before = bench.server.export()
    metrics = dict(bench.server.evaluate())
    inputs, labels = samples()
    plain = deepcopy(model).eval()
    plain.load_state_dict(bench.server.export())
    with torch.no_grad():
        logits = plain(inputs)
    assert metrics["accuracy"] == (logits.argmax(1) == labels).sum().item() / len(labels)
    assert metrics["loss"] == pytest.approx(cross_entropy(logits, labels).item())
    assert same(bench.server.export(), before)
    done = bench.at_server(server_step())  # and it still trains in training mode: dropout is on
    assert (unpack(done.result)["activations.0"] == 0).any()


def test_an_evaluation_in_uneven_pieces_is_an_evaluation_of_all() -> None:
    bench = Bench(dense_model(), samples())
    whole = dict(bench.server.evaluate())
    object.__setattr__(bench.workload, "evaluation_batch", 5)
    pieces = dict(bench.server.evaluate())
    assert pieces["accuracy"] == whole["accuracy"]
    assert pieces["loss"] == pytest.approx(whole["loss"])


class WithAuxiliaryHead(nn.Module):
    """As GoogLeNet calls its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.aux = nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.aux(torch.tanh(self.body(inputs)))


def test_a_model_trained_whole_may_call_a_part_of_itself_aux() -> None:
    bench = Bench(WithAuxiliaryHead(), samples(), training=ServerTraining.NONE, auxiliary="none")
    bench.at("d", FullStep(0))
    update = bench.at("d", ExportModel()).result
    bench.at_server(Merge(0.0, (Part(D, 1.0, update),), (D,)))
    bench.server.evaluate()
    assert same(bench.server.export(), unpack(update))


def test_a_devices_job_is_refused() -> None:
    with pytest.raises(InvariantBroken, match="does not run Prepare"):
        Bench(dense_model(), samples()).at_server(Prepare("{}"))


def test_nothing_is_trained_where_the_method_has_no_server_side() -> None:
    bench = Bench(dense_model(), samples(), training=ServerTraining.NONE, auxiliary="none")
    with pytest.raises(InvariantBroken, match="no server side"):
        bench.at_server(server_step())


@pytest.mark.parametrize("training", [ServerTraining.SHARED, ServerTraining.PER_DEVICE])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_restored_server_goes_on_bit_for_bit(training: ServerTraining, name: str) -> None:
    bench = Bench(
        dense_model(),
        samples(),
        training=training,
        auxiliary="none",
        optimizer=sgd(name=name, momentum=0.9),
    )
    update = Part(D, 0.5, bench.first_model)
    merge = Merge(1.0, (update,), (D,), ServerOptimizer(0.1, momentum=0.9))
    for job in (OpenCopy(D, 1), server_step(0), merge, server_step(1)):
        if not isinstance(job, OpenCopy) or training is ServerTraining.PER_DEVICE:
            bench.at_server(job)
    books, tensors = bench.server.save()
    other = ServerEngine(bench.workload)
    other.restore(books, {key: tensor.clone() for key, tensor in tensors.items()})
    for server in (bench.server, other):
        for job in (server_step(2), merge, server_step(3), merge):
            server.execute(job, bench.first_model.id)
    assert same(bench.server.export(), other.export())
    assert bench.server.evaluate() == other.evaluate()


def test_a_server_saved_before_its_plan_is_restored_before_its_plan() -> None:
    bench = Bench(dense_model(), samples())
    books, tensors = ServerEngine(bench.workload).save()
    other = ServerEngine(bench.workload)
    other.restore(books, tensors)
    assert other.plan is None


def test_forward_and_server_step_give_what_the_plain_model_gives() -> None:
    bench = Bench(dense_model(), samples())
    sent = bench.at("d", Forward(0)).result
    back = bench.at_server(ServerStep(D, 1, 0, sent, 0.0, True)).result
    inputs, labels = bench.batch(0)
    plain = deepcopy(bench.workload.model)
    hidden = plain[0](inputs).detach().requires_grad_()
    cross_entropy(plain[1](hidden), labels).backward()
    assert hidden.grad is not None
    assert torch.equal(unpack(back)["activations.0"], hidden.grad)
