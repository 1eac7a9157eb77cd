from __future__ import annotations

import pytest
import torch

from fedoptima.models.activation import Masked, is_activation, map_tensors, tensors_of

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


@pytest.mark.parametrize("value", [None, 3, (), (HIDDEN, 3), [HIDDEN], {"hidden": HIDDEN}])
def test_anything_else_cannot_cross_a_cut(value: object) -> None:
    assert not is_activation(value)
    with pytest.raises(TypeError, match="an activation is a tensor or a tuple"):
        tensors_of(value)
