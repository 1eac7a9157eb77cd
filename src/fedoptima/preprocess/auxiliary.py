"""The small network a device trains its blocks against, so that it never waits for a gradient.

By default one block of the same type as the last block of the device side, with its kernel, groups
and activation function, then a dense classifier (section 3.2.2). It reads what crosses the cut and
never writes into it; where several tensors cross, it reads the first, which the last module on the
device has made. Weights are drawn from torch's generator: the caller seeds it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from copy import deepcopy
from math import gcd, prod
from typing import Any

from torch import Tensor, fx, nn

from fedoptima.core.errors import ConfigError
from fedoptima.models.activation import Masked
from fedoptima.models.mobilenet import InvertedResidual
from fedoptima.models.transformer import EncoderLayer, MeanPoolClassifier
from fedoptima.preprocess.auxiliary_blocks import (
    WIDEST_HIDDEN,
    encoder_blocks,
    hidden_layer,
    position_blocks,
    same_places,
)
from fedoptima.preprocess.auxiliary_places import place_by_place
from fedoptima.preprocess.exported import ExportedPart
from fedoptima.tasks.output import Output

DEPTHS = {"classifier": 0, "default": 1, "deep": 2}
LIGHT = "light"  # one block that reads less: `preprocess.light_auxiliary`

# The auxiliary network travels with every model update, so its dense layer stays below 1 MiB of
# float32: features are averaged over larger and larger squares until it does. VGG-5 on CIFAR-10
# is far below and keeps every feature (2,048 x 10).
MOST_DENSE_WEIGHTS = 2**18

# Convolution, normalisation, largest and mean of neighbours, by the dimensions of a sample.
_LAYERS: dict[int, tuple[Any, ...]] = {
    1: (nn.Conv1d, nn.BatchNorm1d, nn.MaxPool1d, nn.AvgPool1d),
    2: (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d),
}

# What an auxiliary network copies.
BLOCKS = (
    *(InvertedResidual, EncoderLayer, nn.TransformerEncoderLayer),
    *(nn.Conv1d, nn.Conv2d, nn.Linear),
)
# Without sigmoids and softmax: they are gates and scores, not the activation function of a block.
ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Hardswish, nn.Softplus, nn.Tanh),
)


def build_auxiliary(
    device_side: nn.Module,
    activation: object,
    output: Output | int,
    variant: str | int = "default",
    *,
    server_parameters: int | None = None,
) -> nn.Module | None:
    """The auxiliary network for the output of ``device_side``; None for the variant ``none``.

    ``activation`` is a batch of that output; ``output`` is what has to be predicted, a number: so
    many classes for each sample. A variant is a name or a number of blocks. A network
    with more than ``server_parameters`` gets its features pooled, as far as that helps.
    """
    output = Output(output) if isinstance(output, int) else output
    classes = output.size
    if classes < 1:
        raise ConfigError(f"classes = {classes}: must be at least 1")
    if variant == "none":
        return None
    depth = _depth(variant)
    last = _last(device_side, BLOCKS)
    function = _last(device_side, ACTIVATIONS) or nn.ReLU()
    if isinstance(activation, tuple) and not isinstance(activation, Masked):
        first = build_auxiliary(
            device_side, activation[0], output, variant, server_parameters=server_parameters
        )
        return None if first is None else ReadsFirst(first)
    if output.places:
        blocks, width = same_places(activation, output, depth, last, function)
        return place_by_place(activation, output, blocks, width)
    if isinstance(activation, Masked):
        return _encoder(activation.hidden, depth, classes, last)
    if not isinstance(activation, Tensor):
        raise ConfigError(
            f"no auxiliary network reads {type(activation).__name__}; let the device side end "
            "in a tensor or in Masked hidden states, or set auxiliary to 'none'"
        )
    match activation.dim():
        case 4 if isinstance(last, InvertedResidual):
            return _inverted_residual(activation, depth, classes, last)
        case 4 if _ends_in_positions(device_side, activation):  # (batch, height, width, channels)
            positions = _positions(activation.flatten(1, 2), depth, classes, last, function)
            return _behind(nn.Flatten(1, 2), positions)
        case 4:
            return _convolution(activation, depth, classes, last, function, server_parameters)
        case 3 if isinstance(last, nn.Conv1d) and last.out_channels == activation.shape[1]:
            return _convolution(activation, depth, classes, last, function, server_parameters)
        case 3:
            return _positions(activation, depth, classes, last, function)
        case 0 | 1 | 2:
            return _dense(activation, depth, classes, function, server_parameters)
        case _:  # (batch, channels, and any number of dimensions of a volume)
            series = activation.flatten(2)
            network = _convolution(series, depth, classes, last, function, server_parameters)
            return _behind(nn.Flatten(2), network)


def _ends_in_positions(device_side: nn.Module, activation: Tensor) -> bool:
    """Whether the channels are the last dimension: dense layers and layer norms work on that."""
    last = _last(device_side, (nn.Conv2d, nn.Linear))
    norm = _last(device_side, (nn.Conv2d, nn.BatchNorm2d, nn.LayerNorm))
    width = last.out_features if isinstance(last, nn.Linear) else None
    normed = norm.normalized_shape[-1] if isinstance(norm, nn.LayerNorm) else None
    return activation.shape[-1] in (width, normed) and activation.shape[1] not in (width, normed)


def reads_positions(device_side: nn.Module, activation: Tensor) -> bool:
    """Whether it is (batch, length, dim), or an image with its channels last."""
    last = _last(device_side, BLOCKS)
    if activation.dim() == 3:
        return not (isinstance(last, nn.Conv1d) and last.out_channels == activation.shape[1])
    image = activation.dim() == 4 and not isinstance(last, InvertedResidual)
    return image and _ends_in_positions(device_side, activation)


def _behind(shape: nn.Module, network: nn.Sequential) -> nn.Sequential:
    return nn.Sequential(OrderedDict(shape=shape, network=network))


def pooling_of(auxiliary: nn.Module | None) -> int:
    """The side of the squares over which features are averaged to keep the dense layer small."""
    for layer in auxiliary.children() if auxiliary is not None else ():
        if isinstance(layer, nn.AvgPool2d) and isinstance(layer.kernel_size, int):
            return layer.kernel_size
    return 1


def _depth(variant: str | int) -> int:
    if isinstance(variant, str) and variant in DEPTHS:
        return DEPTHS[variant]
    if isinstance(variant, int) and not isinstance(variant, bool) and variant >= 0:
        return variant
    raise ConfigError(
        f"auxiliary = {variant!r}: unknown variant; choose none, {', '.join(DEPTHS)}, {LIGHT}, "
        "a number of blocks from 0 up, or your own as 'package.module:function'"
    )


def _last(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> nn.Module | None:
    """The last module of these kinds, in the order in which they run."""
    if isinstance(module, kinds):
        return module
    found = [last for child in _in_order(module) if (last := _last(child, kinds)) is not None]
    return found[-1] if found else None


def _in_order(module: nn.Module) -> Iterator[nn.Module]:
    """The modules inside, in the order in which they run; a traced part lists them itself."""
    if isinstance(module, ExportedPart):
        return iter(module._exported_layers)
    if not isinstance(module, fx.GraphModule):
        return module.children()
    calls = (str(node.target) for node in module.graph.nodes if node.op == "call_module")
    return map(module.get_submodule, calls)


def _parameters(blocks: Iterable[nn.Module]) -> int:
    return sum(tensor.numel() for block in blocks for tensor in block.parameters())


def _sequence(blocks: Iterable[nn.Module], **ending: nn.Module) -> nn.Sequential:
    named = {f"block{number}": block for number, block in enumerate(blocks, start=1)}
    return nn.Sequential(OrderedDict(named | ending))


def _convolution(
    activation: Tensor,
    depth: int,
    classes: int,
    last: nn.Module | None,
    function: nn.Module,
    server_parameters: int | None,
) -> nn.Sequential:
    """(batch, channels, length) or (batch, channels, height, width): convolutions of the same
    width, each halving what it reads while there is something to halve."""
    _, channels, *sizes = activation.shape
    convolution, norm, largest, mean = _LAYERS[len(sizes)]
    kernel, groups = (3,) * len(sizes), 1
    if isinstance(last, convolution):
        kernel, groups = last.kernel_size, gcd(last.groups, channels)
    blocks: list[nn.Module] = []
    for _ in range(depth):
        padding = tuple(side // 2 for side in kernel)
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv=convolution(channels, channels, kernel, padding=padding, groups=groups),
            norm=norm(channels),
            activation=deepcopy(function),
        )
        # an even kernel with this padding gives one row or column more
        sizes = [size + 1 - side % 2 for size, side in zip(sizes, kernel, strict=True)]
        if min(sizes) >= 2:
            layers["pool"] = largest(2)
            sizes = [size // 2 for size in sizes]
        blocks.append(nn.Sequential(layers))
    most = _most_dense_weights(blocks, classes, server_parameters)
    square = 1
    while square < min(sizes) and _features(channels, sizes, square) * classes > most:
        square += 1
    # not an adaptive pooling: its gradient is not deterministic on CUDA
    pool = {"pool": mean(square)} if square > 1 else {}
    linear = nn.Linear(_features(channels, sizes, square), classes)
    return _sequence(blocks, **pool, flatten=nn.Flatten(), linear=linear)


def _features(channels: int, sizes: Iterable[int], square: int) -> int:
    """Numbers of a sample that are left where so many neighbours to a side are averaged."""
    return channels * prod(size // square for size in sizes)


def _most_dense_weights(
    blocks: Iterable[nn.Module], classes: int, server_parameters: int | None
) -> int:
    if server_parameters is None:
        return MOST_DENSE_WEIGHTS
    return min(MOST_DENSE_WEIGHTS, server_parameters - _parameters(blocks) - classes)


def _inverted_residual(
    activation: Tensor, depth: int, classes: int, last: InvertedResidual
) -> nn.Module:
    """As the whole network ends: a global mean of every channel, then the dense layer."""
    channels = activation.shape[1]
    return _sequence(
        [last.same_width(channels) for _ in range(depth)],
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        linear=nn.Linear(channels, classes),
    )


def _encoder(hidden: Tensor, depth: int, classes: int, last: nn.Module | None) -> nn.Module:
    width = hidden.shape[-1]
    return _sequence(encoder_blocks(width, depth, last), head=MeanPoolClassifier(width, classes))


def _positions(
    activation: Tensor, depth: int, classes: int, last: nn.Module | None, function: nn.Module
) -> nn.Sequential:
    """(batch, length, dim) without a mask: torch's own encoder layer, or dense at each position."""
    width = activation.shape[-1]
    blocks, width = position_blocks(width, depth, last, function)
    return _sequence(blocks, pool=MeanOverPositions(), linear=nn.Linear(width, classes))


def _dense(
    activation: Tensor,
    depth: int,
    classes: int,
    function: nn.Module,
    server_parameters: int | None,
) -> nn.Module:
    """(batch, features)."""
    features = activation[0].numel()
    width = min(features, WIDEST_HIDDEN) if depth else features
    if depth and server_parameters is not None:
        most = max(server_parameters, MOST_DENSE_WEIGHTS)
        width = max(1, min(width, most // features))
    blocks = [hidden_layer(features if i == 0 else width, width, function) for i in range(depth)]
    dense = _sequence(blocks, linear=nn.Linear(width, classes))
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), dense=dense))


class MeanOverPositions(nn.Module):
    """(batch, length, dim) to (batch, dim)."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.mean(dim=1)


class ReadsFirst(nn.Module):
    """Reads the first of several tensors."""

    one_value = True

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, activation: tuple[Tensor, ...]) -> object:
        result: object = self.network(activation[0])
        return result
