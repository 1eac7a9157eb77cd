"""Light auxiliary networks: cheaper forms of the default one, from the strongest to the cheapest.

The first that costs the device no more than its own blocks is taken (`preprocess.sides`). What the
block reads is averaged over neighbours before it: pixels in squares, positions of a sequence in
windows, without its padding. The cheapest is the classifier alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial

from torch import Tensor, nn
from torch.nn.functional import pad

from fedoptima.models.activation import Masked
from fedoptima.preprocess.auxiliary import ReadsFirst, build_auxiliary, reads_positions
from fedoptima.tasks.output import Output

Form = Callable[[], nn.Module | None]
SIZES = (2, 3, 4, 6, 8, 12, 16)  # of the squares and windows, to a side


def light_forms(
    device_side: nn.Module,
    activation: object,
    output: Output,
    server_parameters: int | None = None,
) -> Iterator[Form]:
    """Each builds a network when it is called; weights come from torch's generator."""
    if isinstance(activation, tuple) and not isinstance(activation, Masked):
        for form in light_forms(device_side, activation[0], output, server_parameters):
            yield partial(_reading_first, form)
        return
    build = partial(build_auxiliary, device_side, output=output)
    limited = partial(build, server_parameters=server_parameters)
    for size in SIZES:
        if (coarser := _coarser(device_side, activation, output, size)) is not None:
            yield partial(_behind, coarser, limited, activation)
    yield partial(build, activation=activation, variant="classifier")


def _reading_first(form: Form) -> nn.Module | None:
    network = form()
    return None if network is None else ReadsFirst(network)


def _behind(
    coarser: nn.Module, build: Callable[..., nn.Module | None], activation: object
) -> nn.Module:
    network = build(activation=coarser(activation))
    assert network is not None
    return nn.Sequential(OrderedDict(coarser=coarser, network=network))


def _coarser(
    device_side: nn.Module, activation: object, output: Output, size: int
) -> nn.Module | None:
    """What averages ``size`` neighbours in each direction; None where there are not so many."""
    if isinstance(activation, Masked):
        length = activation.hidden.shape[1]
        return CoarserPositions(size) if length >= size and not output.places else None
    if not isinstance(activation, Tensor) or len(output.places) == 1:
        return None
    shape = activation.shape[2:]
    if reads_positions(device_side, activation):
        flat: OrderedDict[str, nn.Module] = OrderedDict()
        if activation.dim() == 4:
            flat["shape"] = nn.Flatten(1, 2)
        flat["mean"] = CoarserPositions(size)
        return nn.Sequential(flat) if activation.shape[1] >= size and not output.places else None
    pooling = {3: nn.AvgPool1d, 4: nn.AvgPool2d, 5: nn.AvgPool3d}.get(activation.dim())
    return pooling(size) if pooling is not None and min(shape) >= size else None


class CoarserPositions(nn.Module):
    """(batch, length, dim): the mean of every ``size`` positions in a row that are not padding."""

    one_value = True

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, activation: Tensor | Masked) -> Tensor | Masked:
        hidden = activation.hidden if isinstance(activation, Masked) else activation
        batch, length, width = hidden.shape
        missing = -length % self.size
        words = hidden.new_ones(batch, length, 1)
        if isinstance(activation, Masked):
            words = (~activation.mask).unsqueeze(-1).to(hidden.dtype)
        windows = (batch, -1, self.size)
        total = pad(hidden * words, (0, 0, 0, missing)).reshape(*windows, width).sum(dim=2)
        counted = pad(words, (0, 0, 0, missing)).reshape(*windows, 1).sum(dim=2)
        mean = total / counted.clamp(min=1.0)
        return Masked(mean, counted[..., 0] == 0) if isinstance(activation, Masked) else mean
