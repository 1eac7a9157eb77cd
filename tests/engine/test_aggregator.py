"""Weighted sums of models, and what happens to what is not a weight."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedoptima.core.jobs import ServerOptimizer
from fedoptima.engine.aggregator import DeltaOptimizer, RunningSum, difference, merge
from fedoptima.engine.flat import in_one_piece


def test_weights_are_mixed_with_what_is_kept() -> None:
    base = {"w": torch.tensor([1.0, 2.0])}
    parts = [(0.25, {"w": torch.tensor([5.0, 9.0])}), (0.25, {"w": torch.tensor([3.0, 1.0])})]
    merged = merge(base, 0.5, parts)
    assert torch.equal(merged["w"], torch.tensor([2.5, 3.5]))


def test_running_statistics_are_averaged_like_weights() -> None:
    base = {"norm.running_mean": torch.tensor([4.0])}
    merged = merge(base, 0.75, [(0.25, {"norm.running_mean": torch.tensor([8.0])})])
    assert torch.equal(merged["norm.running_mean"], torch.tensor([5.0]))


@pytest.mark.parametrize("counts", [(3, 9, 5), (9, 3, 5), (3, 5, 9)])
def test_a_counter_takes_the_largest_value_and_is_never_rounded(
    counts: tuple[int, int, int],
) -> None:
    name, dtype = "norm.num_batches_tracked", torch.int64
    base = {name: torch.tensor(counts[0], dtype=dtype)}
    parts = [(0.1, {name: torch.tensor(count, dtype=dtype)}) for count in counts[1:]]
    merged = merge(base, 0.8, parts)[name]
    assert merged.dtype == dtype
    assert int(merged) == 9


def test_a_flag_that_one_part_has_set_is_set() -> None:
    base = {"seen": torch.tensor([False, False, True])}
    merged = merge(base, 0.5, [(0.5, {"seen": torch.tensor([True, False, False])})])
    assert merged["seen"].tolist() == [True, False, True]


def test_nothing_is_taken_of_a_base_of_which_nothing_is_kept() -> None:
    base = {"w": torch.tensor([float("nan"), float("inf")])}
    merged = merge(base, 0.0, [(0.5, {"w": torch.ones(2)}), (0.5, {"w": torch.ones(2)})])
    assert torch.equal(merged["w"], torch.ones(2))


def test_parts_are_added_in_the_order_given() -> None:
    # Floating-point sums depend on their order: 1e8 + 1 is 1e8 in float32.
    big, one = {"w": torch.tensor([1e8])}, {"w": torch.tensor([1.0])}
    less = {"w": torch.tensor([-1e8])}
    base = {"w": torch.zeros(1)}
    assert float(merge(base, 0.0, [(1.0, big), (1.0, less), (1.0, one)])["w"]) == 1.0
    assert float(merge(base, 0.0, [(1.0, big), (1.0, one), (1.0, less)])["w"]) == 0.0


def test_a_merge_shares_no_memory_with_what_went_in() -> None:
    base = {"w": torch.ones(2), "count": torch.tensor(3)}
    part = {"w": torch.zeros(2), "count": torch.tensor(2)}
    for keep, parts in [(0.0, [(1.0, part)]), (1.0, []), (0.5, [(0.5, part)])]:
        merged = merge(base, keep, parts)
        merged["w"].fill_(7.0)
        merged["count"].fill_(7)
    assert base["w"].tolist() == [1.0, 1.0]
    assert part["w"].tolist() == [0.0, 0.0]
    assert (int(base["count"]), int(part["count"])) == (3, 2)


def test_a_merge_leaves_no_trace_in_autograds_books() -> None:
    base = {"w": torch.ones(2, requires_grad=True)}
    merged = merge(base, 0.5, [(0.5, {"w": torch.ones(2, requires_grad=True)})])
    assert not merged["w"].requires_grad


def test_a_difference_is_what_was_learned_and_counters_as_they_are() -> None:
    before = {"w": torch.tensor([1.0]), "count": torch.tensor(3)}
    after = {"w": torch.tensor([1.5]), "count": torch.tensor(5)}
    delta = difference(after, before, {"w"})
    assert delta["w"].tolist() == [0.5]
    assert int(delta["count"]) == 5


def test_a_difference_hands_in_buffers_as_they_are() -> None:
    before = {"w": torch.tensor([1.0]), "running_var": torch.tensor([3.0])}
    after = {"w": torch.tensor([1.5]), "running_var": torch.tensor([2.0])}
    assert difference(after, before, {"w"})["running_var"].tolist() == [2.0]


def test_a_running_variance_never_becomes_negative_by_deltas() -> None:
    # Two devices that began with older models: by differences it would be 0.5 + 1 - 3 = -1.5.
    base = {"running_var": torch.tensor([0.5])}
    parts = [(0.5, {"running_var": torch.tensor([1.0])}) for _ in range(2)]
    moved = DeltaOptimizer().apply(base, parts, ServerOptimizer(), {"w"})
    assert moved["running_var"].tolist() == [1.0]


def test_deltas_move_the_model_at_the_servers_rate() -> None:
    base = {"w": torch.tensor([1.0]), "count": torch.tensor(2)}
    parts = [
        (0.5, {"w": torch.tensor([2.0]), "count": torch.tensor(4)}),
        (0.5, {"w": torch.tensor([4.0]), "count": torch.tensor(3)}),
    ]
    moved = DeltaOptimizer().apply(base, parts, ServerOptimizer(learning_rate=0.1), {"w"})
    assert moved["w"].item() == pytest.approx(1.3)
    assert int(moved["count"]) == 4


def test_deltas_gather_momentum_as_sgd_does() -> None:
    settings = ServerOptimizer(learning_rate=0.5, momentum=0.9)
    optimizer = DeltaOptimizer()
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    reference = torch.optim.SGD([weight], lr=0.5, momentum=0.9)
    model = {"w": weight.detach().clone()}
    for delta in ([1.0, 0.5], [0.25, -1.0], [0.0, 2.0]):
        model = optimizer.apply(model, [(1.0, {"w": torch.tensor(delta)})], settings, {"w"})
        weight.grad = -torch.tensor(delta)  # a delta is a step down the loss
        reference.step()
        assert torch.allclose(model["w"], weight.detach(), atol=1e-6)


# ---- sums of updates that come one by one --------------------------------------------------------


def drawn(devices: int) -> list[tuple[int, dict[str, Tensor]]]:
    """Updates as they are: near to each other, with samples that differ; and a counter."""
    generator = torch.Generator().manual_seed(0)
    begun = torch.randn(4000, generator=generator)
    return [
        (
            50 + number % 7,
            {
                "w": begun + 0.05 * torch.randn(4000, generator=generator),
                "n": torch.tensor(3 + number),
            },
        )
        for number in range(devices)
    ]


def test_a_running_sum_has_the_mean_of_all() -> None:
    updates, total = drawn(100), RunningSum()
    for weight, update in updates:
        total.add(weight, update)
    samples = sum(weight for weight, _ in updates)
    exact = sum((w * u["w"].double() for w, u in updates), torch.zeros(4000).double()) / samples
    base = {"w": torch.zeros(4000), "n": torch.tensor(0)}
    mean = total.mean(base)
    assert torch.equal(mean["w"], exact.float())
    assert mean["n"] == 102
    merged = merge(base, 0.0, [(w / samples, u) for w, u in updates])
    assert torch.allclose(mean["w"], merged["w"], rtol=1e-5, atol=1e-6)


def test_the_order_in_which_updates_come_does_not_show() -> None:
    updates = drawn(100)
    found = []
    for order in (updates, updates[::-1], updates[1::2] + updates[::2]):
        total = RunningSum()
        for weight, update in order:
            total.add(weight, update)
        found.append(total.mean(order[0][1])["w"])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_what_a_checkpoint_holds_of_a_sum_is_not_written_to_again() -> None:
    total = RunningSum()
    total.add(2, {"w": torch.ones(3), "n": torch.tensor(1)})
    state, kept = total.save()
    total.add(1, {"w": torch.ones(3), "n": torch.tensor(7)})
    assert kept["w"].tolist() == [2.0, 2.0, 2.0]
    assert kept["n"] == 1
    restored = RunningSum()
    restored.restore(state, kept)
    restored.add(1, {"w": torch.ones(3), "n": torch.tensor(7)})
    like = {"w": torch.ones(3), "n": torch.tensor(0)}
    assert restored.mean(like)["w"].tolist() == total.mean(like)["w"].tolist() == [1.0, 1.0, 1.0]
    assert kept["w"].tolist() == [2.0, 2.0, 2.0]


def test_updates_in_one_piece_come_to_the_same_mean() -> None:
    """Some of them, or all, with tensors that leave room between each other; twice, since the
    second sum is made where the first was."""
    generator = torch.Generator().manual_seed(1)
    sums = [RunningSum() for _ in range(4)]
    for first in (-5, -20):
        updates = [
            {
                "a": torch.randn(3, 5, generator=generator),
                "n": torch.tensor(first + number),
                "b": torch.randn(7, generator=generator).to(torch.bfloat16),
                "c": torch.randn((), generator=generator),
            }
            for number in range(3)
        ]
        for weight, update in enumerate(updates, start=3):
            sums[0].add(weight, update)
            sums[1].add(weight, in_one_piece(update))
            sums[2].add(weight, update if weight == 4 else in_one_piece(update))
            sums[3].add(weight, update if weight != 4 else in_one_piece(update))
        means = [total.mean(in_one_piece(updates[0])) for total in sums]
        for total in sums:
            total.begin_anew()
        assert means[0]["n"] == first + 2
        for mean in means[1:]:
            for name, tensor in means[0].items():
                assert torch.equal(mean[name], tensor)
                assert mean[name].dtype == tensor.dtype
        kept = {name: tensor.clone() for name, tensor in means[1].items()}
        sums[1].add(9, in_one_piece(updates[2]))
        assert all(torch.equal(means[1][name], kept[name]) for name in kept)
        sums[1].begin_anew()


def test_a_sum_that_lacks_an_update_is_not_saved() -> None:
    total = RunningSum()
    total.error = ValueError("on purpose")
    with pytest.raises(ValueError, match="on purpose"):
        total.save()
