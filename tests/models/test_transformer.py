from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedoptima.core.errors import ConfigError
from fedoptima.models.activation import Masked
from fedoptima.models.transformer import transformer, transformer6, transformer12


def small(heads: int = 2, layers: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return transformer(
        layers=layers, heads=heads, embedding=12, hidden=10, vocabulary=30, length=9, classes=4
    ).eval()


def tokens(rows: int = 3, length: int = 9) -> Tensor:
    drawn = torch.randint(1, 30, (rows, length), generator=torch.Generator().manual_seed(1))
    drawn[0, 5:] = 0
    return drawn


def test_transformer6_and_12_are_as_in_the_paper() -> None:
    # embedding 50 x 100; per layer two norms, 100 -> 300, and three of 100 -> 100; norm and dense
    layer = 2 * 200 + 30_300 + 3 * 10_100
    for build, layers in ((transformer6, 6), (transformer12, 12)):
        model = build(vocabulary=50, length=8, classes=2)
        expected = 50 * 100 + layers * layer + 200 + 202
        assert sum(p.numel() for p in model.parameters()) == expected
        assert model(torch.randint(0, 50, (2, 8))).shape == (2, 2)
    assert transformer12(vocabulary=50, length=8, classes=2)[1].heads == 50


def test_the_embedding_and_the_first_encoder_layer_are_one_block() -> None:
    model = small()
    assert [name for name, _ in model.named_children()] == [
        "encoder1",
        "encoder2",
        "encoder3",
        "head",
    ]
    assert "encoder1.embedding.tokens.weight" in model.state_dict()


def test_the_mask_travels_with_the_hidden_states() -> None:
    batch = tokens()
    activation = small()[:2](batch)
    assert isinstance(activation, Masked)
    assert torch.equal(activation.mask, batch == 0)


def test_what_stands_behind_padding_does_not_change_the_logits() -> None:
    model, batch = small(), tokens()
    first, rest = model[:1], model[1:]
    activation = first(batch)
    disturbed = torch.where(activation.mask.unsqueeze(-1), 1e3, activation.hidden)
    assert not torch.equal(disturbed, activation.hidden)
    torch.testing.assert_close(rest(Masked(disturbed, activation.mask)), rest(activation))
    with torch.no_grad():
        first.get_submodule("encoder1.embedding.tokens").weight[0] = 7.0
    torch.testing.assert_close(model(batch), rest(activation))


def test_longer_padding_does_not_change_the_logits() -> None:
    model, batch = small(), tokens()
    torch.testing.assert_close(model(batch)[:1], model(batch[:1, :5]))


def test_words_do_change_the_logits() -> None:
    model, batch = small(), tokens()
    changed = batch.clone()
    changed[0, 2] = batch[0, 2] % 29 + 1
    assert not torch.allclose(model(changed)[0], model(batch)[0])


def test_word_order_changes_the_logits() -> None:
    model, batch = small(), tokens()
    assert not torch.allclose(model(batch.flip(1))[1], model(batch)[1])


def test_a_row_of_padding_only_gives_no_nan_forward_or_backward() -> None:
    model, batch = small(), tokens()
    batch[1] = 0
    logits = model(batch)
    logits.sum().backward()
    assert logits.isfinite().all()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)
    alone = model(tokens())
    torch.testing.assert_close(logits[[0, 2]], alone[[0, 2]])


def test_attention_equals_a_softmax_of_scaled_products() -> None:
    layer = small(heads=3)[1]
    hidden = torch.randn(2, 5, 12)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[0, 3:] = True
    normed = layer.attention_norm(hidden)
    queries, keys, values = layer.queries_keys_values(normed).chunk(3, dim=-1)
    heads = []
    for head in range(3):
        at = slice(4 * head, 4 * head + 4)
        scores = queries[..., at] @ keys[..., at].transpose(1, 2) / 2.0
        weights = scores.masked_fill(mask[:, None, :], float("-inf")).softmax(-1)
        heads.append(weights @ values[..., at])
    after = hidden + layer.joined(torch.cat(heads, dim=-1))
    expected = after + layer.feedforward(layer.feedforward_norm(after))
    torch.testing.assert_close(layer(Masked(hidden, mask)).hidden, expected)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"heads": 5}, "heads = 5: must divide embedding = 12"),
        ({"layers": 0}, "layers = 0: must be at least 1"),
        ({"dropout": 1.0}, r"dropout = 1.0: must be in \[0, 1\)"),
    ],
)
def test_sizes_that_make_no_transformer_are_refused(
    changed: dict[str, float], message: str
) -> None:
    sizes = {
        "layers": 1,
        "heads": 2,
        "embedding": 12,
        "vocabulary": 9,
        "length": 4,
        "classes": 2,
    }
    with pytest.raises(ConfigError, match=message):
        transformer(**(sizes | changed))  # type: ignore[arg-type]
