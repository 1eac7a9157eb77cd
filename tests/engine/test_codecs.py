"""Activations, gradients and updates in the form in which they are sent."""

from __future__ import annotations

import math
from typing import cast, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from torch import Tensor

from fedoptima.core.codecs import Codec, Codecs
from fedoptima.core.errors import NotFinite, ProtocolViolation
from fedoptima.core.jobs import (
    AuxiliaryStep,
    Backward,
    BasedMerge,
    DeviceProfile,
    ExportModel,
    Forward,
    Merge,
    Part,
    PlanRun,
    ServerOptimizer,
    ServerStep,
)
from fedoptima.core.messages import ActivationBatch, GlobalModel, GradientBatch, ModelUpdate
from fedoptima.core.method import ServerTraining
from fedoptima.core.plan import Plan
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.engine.codecs import LARGEST_CODE, SCALE, CutCodec, UpdateCodec, decode, encode
from fedoptima.engine.payloads import Tensors, unpack
from fedoptima.engine.server import ServerEngine
from fedoptima.sim.dry import Sizes
from tests.engine.bench import Bench, dense_model, payload, samples

CODED: list[Codec] = ["bfloat16", "int8"]
MOST = 2.0**100
NUMBERS = st.floats(-MOST, MOST, width=32)
SHAPES = array_shapes(min_dims=2, max_dims=4, max_side=5)
MATRICES = arrays(np.float32, SHAPES, elements=NUMBERS)
QUICK = settings(max_examples=60, deadline=None, derandomize=True)


def through(tensor: Tensor, codec: Codec) -> Tensor:
    return decode(encode({"x": tensor}, {"x"}, codec), {"x"}, codec)["x"]


@QUICK
@given(MATRICES)
def test_int8_is_off_by_half_a_step_of_its_row_at_most(numbers: np.ndarray) -> None:
    tensor = torch.from_numpy(numbers)
    found = through(tensor, "int8")
    assert found.shape == tensor.shape
    assert found.dtype == torch.float32
    step = tensor.double().abs().flatten(1).amax(1) / LARGEST_CODE
    off = (found.double() - tensor.double()).abs().flatten(1).amax(1)
    tiny = LARGEST_CODE * torch.finfo(torch.float32).tiny  # below it a scale has few digits
    assert (off <= step * 0.5001 + tiny).all()


@QUICK
@given(MATRICES)
def test_bfloat16_is_off_by_one_part_in_256_at_most(numbers: np.ndarray) -> None:
    tensor = torch.from_numpy(numbers)
    off = (through(tensor, "bfloat16").double() - tensor.double()).abs()
    assert (off <= tensor.double().abs() / 256 + torch.finfo(torch.float32).tiny).all()


@QUICK
@given(MATRICES, st.sampled_from(get_args(Codec)))
def test_a_row_is_coded_alike_whatever_is_beside_it(numbers: np.ndarray, codec: Codec) -> None:
    tensor = torch.from_numpy(numbers)
    whole = encode({"x": tensor}, {"x"}, codec)
    for row in range(len(tensor)):
        alone = encode({"x": tensor[row : row + 1]}, {"x"}, codec)
        assert all(torch.equal(alone[name][0], whole[name][row]) for name in whole)


def test_halves_are_rounded_to_even_and_the_ends_are_exact() -> None:
    tensor = torch.tensor([[127.0, 0.5, 1.5, -0.5, -2.5, -127.0]])
    coded = encode({"x": tensor}, {"x"}, "int8")
    assert coded["x"].tolist() == [[127, 0, 2, 0, -2, -127]]
    assert coded["x"].dtype == torch.int8
    assert decode(coded, {"x"}, "int8")["x"].tolist() == [[127, 0, 2, 0, -2, -127]]


def test_zeros_stay_zeros() -> None:
    assert torch.equal(through(torch.zeros(2, 3), "int8"), torch.zeros(2, 3))


@pytest.mark.parametrize("codec", CODED)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_is_not_finite_afterwards(bad: float, codec: Codec) -> None:
    tensor = torch.ones(3, 4)
    tensor[1, 2] = bad
    found = through(tensor, codec)
    assert found.isfinite().all(1).tolist() == [True, False, True]


@pytest.mark.parametrize("codec", CODED)
def test_what_is_not_named_is_left_as_it_is(codec: Codec) -> None:
    tensors = {"x": torch.rand(2, 3), "mask": torch.rand(2, 3) > 0.5, "labels": torch.arange(2)}
    coded = encode(tensors, {"x"}, codec)
    assert coded["mask"] is tensors["mask"]
    assert decode(coded, {"x"}, codec).keys() == tensors.keys()


# ---- between a device and the server -------------------------------------------------------------


def bench_with(codecs: Codecs, **parts: object) -> Bench:
    return Bench(dense_model(), samples(), codecs=codecs, **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", CODED)
def test_a_batch_is_sent_coded_and_as_large_as_the_plan_says(codec: Codec) -> None:
    plain, bench = (bench_with(Codecs(activations=each)) for each in ("float32", codec))
    sent, coded = (each.at("d", Forward(0)).result for each in (plain, bench))
    sizes = Sizes(Plan.from_json(bench.plan))
    assert coded.nbytes == 7 * (sizes.activation + 8)
    cut = CutCodec.of(Plan.from_json(bench.plan))
    assert unpack(coded).keys() == {*cut.encode(unpack(sent))}
    bench.server.admit(ActivationBatch(0, coded))
    with pytest.raises(ProtocolViolation):
        bench.server.admit(ActivationBatch(0, sent))
    with pytest.raises(ProtocolViolation):
        plain.server.admit(ActivationBatch(0, coded))


def test_the_server_trains_on_the_decoded_batch() -> None:
    """As it would on float32 activations that happen to be those."""
    bench, plain = bench_with(Codecs(activations="int8")), bench_with(Codecs())
    coded = bench.at("d", Forward(0)).result
    cut = CutCodec.of(Plan.from_json(bench.plan))
    for each, sent in ((bench, coded), (plain, payload(**cut.decode(unpack(coded))))):
        each.at_server(ServerStep(NodeId("d"), 1, 0, sent, 0.0))
    left, right = bench.server.export(), plain.server.export()
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("codec", CODED)
def test_a_gradient_comes_back_coded_and_is_used(codec: Codec) -> None:
    codecs = Codecs(gradients=codec)
    bench = bench_with(codecs, training=ServerTraining.SHARED, auxiliary="none")
    batch = bench.at("d", Forward(0)).result
    step = ServerStep(NodeId("d"), 1, 0, batch, 0.0, return_gradient=True)
    gradient = bench.at_server(step).result
    assert gradient.nbytes == 7 * Sizes(Plan.from_json(bench.plan)).gradient
    assert unpack(gradient)["activations.0"].dtype is not torch.float32
    before = {n: t.clone() for n, t in bench.devices["d"].save()[1].items()}
    bench.at("d", Backward(0, 0, gradient, True))
    after = bench.devices["d"].save()[1]
    assert any(not torch.equal(before[name], after[name]) for name in before)


def of(tensors: Tensors, **changes: Tensor) -> ActivationBatch:
    return ActivationBatch(0, payload(**{**tensors, **changes}))


@pytest.fixture
def coded() -> tuple[Bench, Tensors]:
    bench = bench_with(Codecs(activations="int8"))
    return bench, unpack(bench.at("d", Forward(0)).result)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e6])
def test_a_sample_that_is_not_finite_is_found_by_its_scale(
    coded: tuple[Bench, Tensors], bad: float
) -> None:
    bench, tensors = coded
    scale = tensors["activations.0" + SCALE].clone()
    scale[3] = bad
    with pytest.raises(NotFinite, match=r"activations\.0\.scale holds"):
        bench.server.admit(of(tensors, **{"activations.0" + SCALE: scale}))


def test_a_batch_that_is_looked_at_while_it_trains_trains_nothing_if_it_is_not_finite(
    coded: tuple[Bench, Tensors],
) -> None:
    """As a simulation does it."""
    bench, tensors = coded
    server = ServerEngine(bench.workload, deferred=True)
    server.execute(PlanRun((DeviceProfile(NodeId("d"), 28, 1e9, 1e6),)), PayloadId("p"))
    before = server.export()
    scale = tensors["activations.0" + SCALE].clone()
    scale[3] = math.nan
    bad = payload(**{**tensors, "activations.0" + SCALE: scale})
    server.admit(ActivationBatch(0, bad))  # its form is right
    server.execute(ServerStep(NodeId("d"), 1, 0, bad, 0.0), PayloadId("x"))
    after = server.export()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert server.deferred is not None
    assert "activations.0.scale holds NaN" in str(server.deferred.read()["d"])  # type: ignore[index]


def test_codes_and_scales_that_no_device_makes_are_refused(coded: tuple[Bench, Tensors]) -> None:
    bench, tensors = coded
    name, scale = "activations.0", "activations.0" + SCALE
    lowest = tensors[name].clone()
    lowest[0, 0] = -128
    for changes in (
        {name: lowest},
        {scale: -tensors[scale]},
        {scale: tensors[scale][:-1]},
        {scale: tensors[scale].double()},
        {scale: tensors[scale][:, None]},
        {name: tensors[name].to(torch.uint8)},
    ):
        with pytest.raises(ProtocolViolation):
            bench.server.admit(of(tensors, **changes))
    without = {n: t for n, t in tensors.items() if n != scale}
    with pytest.raises(ProtocolViolation, match="is missing"):
        bench.server.admit(of(without))


def test_the_limits_on_messages_are_those_of_what_is_sent() -> None:
    plain, bench = bench_with(Codecs()), bench_with(Codecs(activations="int8"))
    most = [each.server.most_bytes(ActivationBatch) for each in (plain, bench)]
    assert most[0] - most[1] == 7 * (8 * 4 - 8 - 4)
    assert bench.server.most_bytes(GradientBatch) == 7 * 8 * 4
    assert bench.server.most_bytes(GlobalModel) == cast(Payload, bench.first_model).nbytes


# ---- updates -------------------------------------------------------------------------------------


def trained(bench: Bench, delta: bool = False) -> Payload:
    bench.at("d", Forward(0))
    bench.at("d", AuxiliaryStep(0))
    return bench.at("d", ExportModel(delta)).result


@pytest.mark.parametrize("codec", CODED)
def test_an_update_is_sent_as_the_coded_change_of_its_weights(codec: Codec) -> None:
    plain, bench = (bench_with(Codecs(updates=each)) for each in ("float32", codec))
    whole, sent = unpack(trained(plain)), trained(bench)
    assert sent.nbytes == Sizes(Plan.from_json(bench.plan)).update < plain.first_model.nbytes
    bench.server.admit(ModelUpdate(0, 7, sent))
    first = unpack(bench.first_model)
    names = {name for name in first if first[name].dim() > 1}
    found = UpdateCodec(codec, frozenset(names)).decode(unpack(sent), first)
    for name, tensor in whole.items():
        change = (tensor - first[name]).abs().amax()
        off = (found[name] - tensor).abs().amax()
        assert off <= change / 200 + 1e-7 if name in names else torch.equal(found[name], tensor)


@pytest.mark.parametrize("base", ["known", "not known"])
def test_a_coded_update_is_merged_with_the_model_that_its_round_began_with(base: str) -> None:
    """If that is not known any more, with the one that there is."""
    bench = bench_with(Codecs(updates="int8"))
    sent = trained(bench)
    first = unpack(bench.first_model)
    codec = UpdateCodec.of("int8", first, [n for n in first if "weight" in n or "bias" in n])
    expected = codec.decode(unpack(sent), first)
    bases = (bench.first_model,) if base == "known" else (None,)
    part = Part(NodeId("d"), 0.5, sent)
    merged = unpack(bench.at_server(BasedMerge(0.5, (part,), (), None, bases)).result)
    for name, tensor in merged.items():
        assert torch.allclose(tensor, 0.5 * first[name] + 0.5 * expected[name])


def test_deltas_are_coded_and_stay_deltas() -> None:
    bench = bench_with(Codecs(updates="int8"))
    sent = trained(bench, delta=True)
    first = unpack(bench.first_model)
    part = Part(NodeId("d"), 1.0, sent)
    merge = Merge(1.0, (part,), (), ServerOptimizer())
    merged = unpack(bench.at_server(merge).result)
    codec = UpdateCodec.of("int8", first, list(first))
    change = codec.decode(unpack(sent), None)
    for name, tensor in merged.items():
        assert torch.allclose(tensor, first[name] + change[name])


def test_updates_of_another_form_are_refused() -> None:
    plain, bench = bench_with(Codecs()), bench_with(Codecs(updates="int8"))
    whole, sent = trained(plain), trained(bench)
    with pytest.raises(ProtocolViolation):
        bench.server.admit(ModelUpdate(0, 7, whole))
    with pytest.raises(ProtocolViolation):
        plain.server.admit(ModelUpdate(0, 7, sent))
    tensors = unpack(sent)
    name = next(name for name in tensors if name.endswith(SCALE))
    for bad, error in ((math.nan, NotFinite), (1e5, NotFinite), (-0.1, ProtocolViolation)):
        changed = {**tensors, name: torch.full_like(tensors[name], bad)}
        with pytest.raises(error):
            bench.server.admit(ModelUpdate(0, 7, payload(**changed)))
        message = ModelUpdate(0, 7, payload(**changed))
        with pytest.raises(error):
            bench.server.admit(message, bench.server.inspect(message))
