from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedoptima.core.errors import ConfigError
from fedoptima.models.activation import Masked, map_tensors, tensors_of
from fedoptima.models.mobilenet import InvertedResidual, mobilenet_v3_large
from fedoptima.models.transformer import EncoderLayer
from fedoptima.models.vgg5 import vgg5
from fedoptima.preprocess.auxiliary import MOST_DENSE_WEIGHTS, build_auxiliary, pooling_of
from fedoptima.preprocess.cuts import cuttable

from .networks import every_network

CLASSES = 6
NETWORKS = every_network()

# device side, input, the block type the auxiliary copies
ENDINGS: dict[str, tuple[nn.Module, Tensor, type[nn.Module]]] = {
    "conv": (NETWORKS["vgg5"][0][:1], NETWORKS["vgg5"][1], nn.Conv2d),
    "dense": (NETWORKS["vgg5"][0][:4], NETWORKS["vgg5"][1], nn.Linear),
    "inverted residual": (
        NETWORKS["mobilenet"][0][:5],
        NETWORKS["mobilenet"][1],
        InvertedResidual,
    ),
    "encoder": (NETWORKS["transformer6"][0][:1], NETWORKS["transformer6"][1], EncoderLayer),
    "torch's encoder": (
        nn.Sequential(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)),
        torch.rand(3, 5, 8),
        nn.TransformerEncoderLayer,
    ),
    "unknown 3-D": (nn.Identity(), torch.rand(3, 5, 8), nn.Linear),
    "unknown 4-D": (nn.Identity(), torch.rand(3, 5, 8, 8), nn.Conv2d),
    "unknown 5-D": (nn.Identity(), torch.rand(3, 2, 2, 4, 4), nn.Conv1d),
    "series": (nn.Conv1d(2, 5, 4), torch.rand(3, 2, 9), nn.Conv1d),
    "channels last": (nn.Linear(2, 5), torch.rand(3, 4, 4, 2), nn.Linear),
}


def blocks_of(auxiliary: nn.Module, kind: type[nn.Module]) -> list[nn.Module]:
    named = [
        module for name, module in auxiliary.named_modules() if name.split(".")[-1][:5] == "block"
    ]
    return [m for m in named if any(isinstance(inner, kind) for inner in m.modules())]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("variant", "depth"), [("classifier", 0), ("default", 1), ("deep", 2), (0, 0), (3, 3)]
)
def test_every_variant_gives_logits_and_gradients(
    ending: str, variant: str | int, depth: int
) -> None:
    device_side, data, kind = ENDINGS[ending]
    activation = device_side(data)
    auxiliary = build_auxiliary(device_side, activation, CLASSES, variant)
    assert auxiliary is not None
    assert len(blocks_of(auxiliary, kind)) == depth

    def entering(tensor: Tensor) -> Tensor:
        return tensor.detach().clone().requires_grad_(tensor.is_floating_point())

    entered = map_tensors(activation, entering)
    logits = auxiliary(entered)
    assert logits.shape == (len(data), CLASSES)
    logits.square().sum().backward()
    gradients = [p.grad for p in auxiliary.parameters()] + [tensors_of(entered)[0].grad]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    assert all(tensor._version == 0 for tensor in tensors_of(entered))


def test_no_auxiliary_network_is_none() -> None:
    device_side, data, _ = ENDINGS["conv"]
    assert build_auxiliary(device_side, device_side(data), CLASSES, "none") is None


@pytest.mark.parametrize("variant", ["shallow", -1, True, ""])
def test_an_unknown_variant_is_refused_with_the_list(variant: str | int) -> None:
    device_side, data, _ = ENDINGS["conv"]
    with pytest.raises(
        ConfigError, match=r"unknown variant; choose none, classifier, default, deep"
    ):
        build_auxiliary(device_side, device_side(data), CLASSES, variant)


def test_the_default_for_vgg5_is_a_convolution_and_a_dense_layer() -> None:
    model = vgg5()
    auxiliary = build_auxiliary(model[:1], model[:1](torch.rand(2, 3, 32, 32)), 10)
    assert isinstance(auxiliary, nn.Sequential)
    block = auxiliary.get_submodule("block1")
    assert [type(layer) for layer in block.children()] == [
        nn.Conv2d,
        nn.BatchNorm2d,
        nn.ReLU,
        nn.MaxPool2d,
    ]
    assert auxiliary.get_submodule("linear").in_features == 32 * 8 * 8


def parameters_of(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_a_pointwise_convolution_is_copied_as_one() -> None:
    model = mobilenet_v3_large()
    parts = cuttable(model, torch.rand(2, 3, 64, 64))
    device_side, server_side = parts.part(0, 17), parts.part(17, 18)
    auxiliary = build_auxiliary(device_side, device_side(torch.rand(2, 3, 64, 64)), 200)
    assert auxiliary is not None
    assert parameters_of(auxiliary) < parameters_of(server_side)
    block = auxiliary.get_submodule("block1")
    assert block.get_submodule("conv").kernel_size == (1, 1)
    assert isinstance(block.get_submodule("activation"), nn.Hardswish)


@pytest.mark.parametrize(
    "activation",
    [nn.ReLU6(inplace=True), nn.LeakyReLU(0.2), nn.SiLU(), nn.GELU(), nn.ELU(), nn.Tanh()],
)
@pytest.mark.parametrize(("kernel", "groups"), [((5, 5), 1), ((1, 3), 2), ((3, 3), 8), ((2, 2), 4)])
def test_a_convolution_is_copied_with_its_kernel_groups_and_activation(
    activation: nn.Module, kernel: tuple[int, int], groups: int
) -> None:
    device_side = nn.Sequential(
        nn.Conv2d(8, 8, kernel, groups=groups), nn.BatchNorm2d(8), activation
    )
    crossing = device_side(torch.rand(2, 8, 7, 9)).detach().clone()
    auxiliary = build_auxiliary(device_side, crossing, CLASSES, "deep")
    assert auxiliary is not None
    for number in (1, 2):
        convolution = auxiliary.get_submodule(f"block{number}.conv")
        assert isinstance(convolution, nn.Conv2d)
        assert (convolution.kernel_size, convolution.groups) == (kernel, groups)
        copied = auxiliary.get_submodule(f"block{number}.activation")
        assert repr(copied) == repr(activation)
        assert copied is not activation
    assert auxiliary(crossing).shape == (2, CLASSES)
    assert crossing._version == 0


def test_a_gate_is_not_taken_for_the_activation_of_a_block() -> None:
    device_side = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU6(), nn.Conv2d(8, 8, 1), nn.Sigmoid())
    auxiliary = build_auxiliary(device_side, torch.rand(2, 8, 6, 6), CLASSES)
    assert auxiliary is not None
    assert isinstance(auxiliary.get_submodule("block1.activation"), nn.ReLU6)


def test_dense_layers_and_encoders_are_copied_with_their_activation() -> None:
    dense = build_auxiliary(nn.Sequential(nn.Linear(6, 8), nn.GELU()), torch.rand(2, 8), CLASSES)
    assert dense is not None
    assert isinstance(dense.get_submodule("dense.block1.activation"), nn.GELU)
    encoder = nn.TransformerEncoderLayer(8, 2, 12, activation="gelu", batch_first=True)
    copied = build_auxiliary(encoder, torch.rand(2, 5, 8), CLASSES)
    assert copied is not None
    block = copied.get_submodule("block1")
    assert isinstance(block, nn.TransformerEncoderLayer)
    assert block.activation is nn.functional.gelu


def test_features_are_pooled_until_the_auxiliary_is_no_larger_than_the_server_side() -> None:
    device_side = nn.Sequential(nn.Conv2d(3, 16, 1), nn.ReLU())
    activation = torch.rand(2, 16, 24, 24)

    def auxiliary_beside(server_parameters: int | None) -> nn.Module:
        auxiliary = build_auxiliary(
            device_side, activation, CLASSES, server_parameters=server_parameters
        )
        assert auxiliary is not None
        assert auxiliary(activation).shape == (2, CLASSES)
        return auxiliary

    whole = auxiliary_beside(None)
    assert pooling_of(whole) == 1
    assert pooling_of(auxiliary_beside(parameters_of(whole))) == 1
    pooled = auxiliary_beside(parameters_of(whole) - 1)
    assert pooling_of(pooled) == 2
    assert parameters_of(pooled) < parameters_of(whole)
    assert pooling_of(auxiliary_beside(1)) == 12, "one value for each channel is the least"


def test_every_split_of_every_model_has_an_auxiliary() -> None:
    for model, data in NETWORKS.values():
        parts = cuttable(model, data)
        for split in range(1, len(parts.names)):
            device_side = parts.part(0, split)
            activation = device_side(data.clone())
            auxiliary = build_auxiliary(device_side, activation, CLASSES)
            assert auxiliary is not None
            assert auxiliary(activation).shape == (2, CLASSES)


@pytest.mark.parametrize(("size", "classes"), [(112, 200), (16, 200), (5, 200_000)])
def test_the_dense_layer_stays_small_for_large_images(size: int, classes: int) -> None:
    activation = torch.rand(1, 16, size, size)
    auxiliary = build_auxiliary(nn.Identity(), activation, classes, "classifier")
    assert auxiliary is not None
    weights = auxiliary.get_submodule("linear").weight.numel()
    assert weights <= max(MOST_DENSE_WEIGHTS, 16 * classes)
    assert auxiliary(activation).shape == (1, classes)


def test_a_wide_flat_activation_gets_no_square_of_its_width() -> None:
    activation = torch.rand(2, 5000)
    auxiliary = build_auxiliary(nn.Identity(), activation, CLASSES, "deep")
    assert auxiliary is not None
    assert sum(p.numel() for p in auxiliary.parameters()) < 512 * 6000


def test_an_encoders_auxiliary_does_not_look_behind_padding() -> None:
    device_side, data, _ = ENDINGS["encoder"]
    hidden, mask = device_side(data)
    auxiliary = build_auxiliary(device_side, Masked(hidden, mask), CLASSES)
    assert auxiliary is not None
    auxiliary.eval()
    disturbed = torch.where(mask.unsqueeze(-1), -50.0, hidden)
    assert mask.any()
    torch.testing.assert_close(auxiliary(Masked(disturbed, mask)), auxiliary(Masked(hidden, mask)))


class PlainEncoder(nn.Module):
    """The last layer to run is not the last to be registered."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.ModuleDict({"dense": nn.Linear(8, 8)})
        self.encoder = nn.TransformerEncoderLayer(8, 4, 12, batch_first=True)
        self.first = nn.Linear(6, 8)

    def forward(self, values: Tensor) -> Tensor:
        return self.encoder(self.deep["dense"](self.first(values)))


def test_the_last_block_of_a_traced_part_is_the_last_to_run() -> None:
    values = torch.rand(2, 5, 6)
    device_side = cuttable(PlainEncoder(), values).part(0, 3)
    auxiliary = build_auxiliary(device_side, device_side(values), CLASSES)
    assert auxiliary is not None
    assert isinstance(auxiliary.get_submodule("block1"), nn.TransformerEncoderLayer)


def test_an_output_no_auxiliary_can_read_is_refused() -> None:
    with pytest.raises(ConfigError, match="no auxiliary network reads dict"):
        build_auxiliary(nn.Identity(), {"x": torch.rand(2, 2)}, CLASSES)
    masked = Masked(torch.rand(2, 3, 4), torch.zeros(2, 3, dtype=torch.bool))
    with pytest.raises(ConfigError, match="holds no EncoderLayer to copy"):
        build_auxiliary(nn.Identity(), masked, CLASSES)
    with pytest.raises(ConfigError, match="classes = 0"):
        build_auxiliary(nn.Identity(), torch.rand(2, 2), 0)


def test_the_output_of_a_conv1d_has_its_channels_first_and_gets_a_small_network() -> None:
    device_side = nn.Sequential(nn.Conv1d(1, 16, 20), nn.ReLU())
    activation = device_side(torch.rand(2, 1, 4019))
    assert activation.shape == (2, 16, 4000)
    auxiliary = build_auxiliary(device_side, activation, CLASSES, server_parameters=20_000)
    assert auxiliary is not None
    assert auxiliary(activation).shape == (2, CLASSES)
    assert auxiliary.get_submodule("block1.conv").weight.shape == (16, 16, 20)
    assert parameters_of(auxiliary) < 20_000


def test_a_transposed_series_is_read_by_positions() -> None:
    device_side = nn.Sequential(nn.Conv1d(3, 8, 3))
    auxiliary = build_auxiliary(device_side, torch.rand(2, 20, 8), CLASSES)
    assert auxiliary is not None
    assert auxiliary.get_submodule("linear").in_features == 8


@pytest.mark.parametrize("shape", [(2, 60_000), (2, 4, 8, 16, 16), (2, 30, 4_000)])
def test_no_activation_gets_a_network_much_larger_than_the_server_side(
    shape: tuple[int, ...],
) -> None:
    activation = torch.rand(*shape)
    auxiliary = build_auxiliary(
        nn.Identity(), activation, CLASSES, "default", server_parameters=100_000
    )
    assert auxiliary is not None
    assert auxiliary(activation).shape == (2, CLASSES)
    assert parameters_of(auxiliary) < 9 * MOST_DENSE_WEIGHTS


def test_of_several_tensors_the_first_is_read() -> None:
    hidden, mask = torch.rand(2, 5, 8), torch.zeros(2, 1, 5, 5, dtype=torch.bool)
    auxiliary = build_auxiliary(nn.Identity(), (hidden, mask), CLASSES)
    assert auxiliary is not None
    assert torch.equal(auxiliary((hidden, mask)), auxiliary((hidden, ~mask)))
    assert auxiliary((hidden, mask)).shape == (2, CLASSES)


def test_a_layer_norm_tells_that_channels_come_last() -> None:
    merging = nn.Sequential(nn.Conv2d(3, 8, 4), nn.LayerNorm(8), nn.LayerNorm(32))
    auxiliary = build_auxiliary(merging, torch.rand(2, 4, 4, 32), CLASSES)
    assert auxiliary is not None
    assert auxiliary.get_submodule("network.linear").in_features == 32
