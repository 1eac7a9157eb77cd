"""`training.precision`: products in another format; weights and what is sent stay float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedoptima.config.training import Precision
from fedoptima.core.errors import ConfigError
from fedoptima.core.jobs import (
    AuxiliaryStep,
    Backward,
    ExportModel,
    Forward,
    FullStep,
    OpenCopy,
    ServerStep,
)
from fedoptima.core.method import ServerTraining
from fedoptima.core.types import NodeId
from fedoptima.engine.compute_device import CPU, check_precision
from fedoptima.engine.determinism import deterministic
from fedoptima.engine.payloads import Tensors, unpack
from fedoptima.engine.precision import forward, set_products
from fedoptima.models.activation import Masked
from fedoptima.models.transformer import transformer
from tests.engine.bench import Bench, same, samples

D = NodeId("d")


class Watching(nn.Module):
    """Keeps the format of what comes in."""

    seen: set[torch.dtype]

    def forward(self, inputs: Tensor) -> Tensor:
        Watching.seen.add(inputs.dtype)
        return inputs


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), Watching()),
            nn.Sequential(nn.Flatten(), nn.Linear(4 * 36, 16), Watching(), nn.Linear(16, 3)),
        )


def bench(precision: Precision, training: ServerTraining = ServerTraining.SHARED) -> Bench:
    auxiliary = "classifier" if training is ServerTraining.SHARED else "none"
    data = samples(28, 3, 6, 6)
    Watching.seen = set()
    made = Bench(network(), data, auxiliary=auxiliary, training=training, precision=precision)
    Watching.seen = set()  # planning looks at the model, too
    return made


def float32(tensors: Tensors) -> bool:
    return all(t.dtype == torch.float32 for t in tensors.values() if t.is_floating_point())


def steps(precision: Precision) -> tuple[Bench, Tensors]:
    made = bench(precision)
    for step in range(3):
        sent = made.at("d", Forward(step)).result
        assert float32(unpack(sent))
        made.at("d", AuxiliaryStep(step))
        made.at_server(ServerStep(D, 1, step, sent, 0.0))
    return made, unpack(made.at("d", ExportModel()).result)


def test_both_sides_multiply_in_bfloat16_and_keep_weights_in_float32() -> None:
    made, exported = steps("bf16")
    assert Watching.seen == {torch.bfloat16}
    assert float32(exported)
    assert float32(made.server.export())
    _, usual = steps("float32")
    assert Watching.seen == {torch.float32}
    assert not same(exported, usual)
    for name, tensor in usual.items():
        torch.testing.assert_close(exported[name], tensor, rtol=0.05, atol=0.05)


def test_gradients_cross_the_cut_in_float32() -> None:
    made = bench("bf16", ServerTraining.PER_DEVICE)
    made.at_server(OpenCopy(D, 1))
    sent = made.at("d", Forward(0)).result
    back = made.at_server(ServerStep(D, 1, 0, sent, 0.0, return_gradient=True)).result
    assert float32(unpack(back))
    before = {name: tensor.clone() for name, tensor in unpack(made.first_model).items()}
    made.at("d", Backward(0, 0, back, True))
    assert Watching.seen == {torch.bfloat16}
    assert not same(before, unpack(made.at("d", ExportModel()).result))


def test_a_model_trained_whole_and_its_evaluation_multiply_in_bfloat16() -> None:
    made = bench("bf16", ServerTraining.NONE)
    made.at("d", FullStep(0))
    assert Watching.seen == {torch.bfloat16}
    Watching.seen = set()
    metrics = dict(made.server.evaluate())
    assert Watching.seen == {torch.bfloat16}
    assert metrics["loss"] == pytest.approx(
        dict(bench("float32", ServerTraining.NONE).server.evaluate())["loss"], rel=0.02
    )


def test_float32_is_what_a_module_computes_by_itself() -> None:
    model, inputs = network(), samples(4, 3, 6, 6)[0]
    Watching.seen = set()
    assert torch.equal(forward(model, inputs, "float32", CPU), model(inputs))


def test_a_transformer_takes_bfloat16_with_rows_of_padding_only() -> None:
    model = transformer(
        layers=2, heads=3, embedding=12, hidden=8, vocabulary=9, length=5, classes=2, dropout=0.0
    )
    tokens = torch.tensor([[1, 2, 3, 0, 0], [0, 0, 0, 0, 0]])
    hidden = forward(model[0], tokens, "bf16", CPU)
    assert isinstance(hidden, Masked)
    assert (hidden.hidden.dtype, hidden.mask.dtype) == (torch.float32, torch.bool)
    logits = forward(model[1:], hidden, "bf16", CPU)
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    torch.testing.assert_close(logits, model(tokens), rtol=0.05, atol=0.05)


def test_a_run_puts_the_format_of_products_back() -> None:
    before = torch.get_float32_matmul_precision()
    with deterministic(1, "tf32"):
        assert torch.get_float32_matmul_precision() == "high"
        set_products("float32")
        assert torch.get_float32_matmul_precision() == "highest"
        set_products("tf32")
    assert torch.get_float32_matmul_precision() == before


def test_a_machine_that_lacks_the_format_is_told_so_with_the_way_out() -> None:
    check_precision("float32", CPU)
    check_precision("bf16", CPU)
    with pytest.raises(ConfigError, match=r"training.precision = 'tf32': only NVIDIA GPUs .* use"):
        check_precision("tf32", CPU)
