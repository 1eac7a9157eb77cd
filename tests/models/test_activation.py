from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from fedoptima.models.activation import (
    Masked,
    call,
    is_activation,
    is_inputs,
    map_tensors,
    samples_in,
    shapes_in_words,
    tensors_of,
)

HIDDEN, MASK = torch.ones(2, 3), torch.zeros(2, dtype=torch.bool)


def test_mapping_keeps_the_kind_of_activation() -> None:
    assert torch.equal(map_tensors(HIDDEN, torch.neg), -HIDDEN)  # type: ignore[arg-type]
    masked = map_tensors(Masked(HIDDEN, MASK), torch.clone)
    assert isinstance(masked, Masked)
    assert masked.hidden is not HIDDEN
    assert type(map_tensors((HIDDEN, MASK), torch.clone)) is tuple


def test_tensors_come_in_the_order_of_the_fields() -> None:
    first, second = tensors_of(Masked(HIDDEN, MASK))
    assert first is HIDDEN
    assert second is MASK


@pytest.mark.parametrize("value", [None, 3, (), {}, (HIDDEN, 3), [HIDDEN], {"hidden": 3}])
def test_anything_else_is_neither_an_activation_nor_an_input(value: object) -> None:
    assert not is_activation(value)
    assert not is_inputs(value)
    with pytest.raises(TypeError, match="neither a tensor nor a tuple or dict of tensors"):
        tensors_of(value)


def test_a_dict_is_an_input_and_cannot_cross_a_cut() -> None:
    named = {"b": HIDDEN, "a": MASK}
    assert is_inputs(named)
    assert not is_activation(named)
    assert tensors_of(named) == (HIDDEN, MASK)
    assert list(map_tensors(named, torch.clone)) == ["b", "a"]
    assert samples_in(named) == 2
    assert shapes_in_words(named) == "b (2, 3) torch.float32, a (2,) torch.bool"


class Sum(nn.Module):
    """As Hugging Face's models: arguments by name, an object with the logits."""

    def forward(self, a: Tensor, b: Tensor | None = None) -> object:
        return SimpleNamespace(logits=a if b is None else a - b, hidden_states=())


@pytest.mark.parametrize(
    "inputs", [HIDDEN, (3 * HIDDEN, 2 * HIDDEN), {"b": 2 * HIDDEN, "a": 3 * HIDDEN}]
)
def test_several_inputs_are_the_arguments_of_a_model(inputs: object) -> None:
    assert torch.equal(call(Sum(), inputs), HIDDEN)  # type: ignore[arg-type]


def test_of_a_dict_with_logits_these_are_the_output() -> None:
    class Named(nn.Module):
        def forward(self, value: Tensor) -> dict[str, Tensor]:
            return {"hidden": value, "logits": 2 * value}

    class Nameless(nn.Module):
        def forward(self, value: Tensor) -> dict[str, Tensor]:
            return {"hidden": value}

    assert torch.equal(call(Named(), HIDDEN), 2 * HIDDEN)  # type: ignore[arg-type]
    assert isinstance(call(Nameless(), HIDDEN), dict)


def test_a_sequential_takes_what_comes_as_one_value() -> None:
    class First(nn.Module):
        def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
            return pair[0]

    assert call(nn.Sequential(First()), (HIDDEN, MASK)) is HIDDEN
