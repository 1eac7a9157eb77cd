from __future__ import annotations

import pytest

from fedoptima.core.aggregation import (
    WAIT,
    AsyncStaleness,
    Buffered,
    Offer,
)
from fedoptima.core.errors import ConfigError, RunFailed
from fedoptima.core.jobs import Merge, Part, ServerOptimizer
from fedoptima.core.staleness import AlphaDecay, StalenessRule
from fedoptima.core.types import NodeId
from tests.core.offers import offer, weights
from tests.support.bench import payload, update

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


# ---- staleness rules ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (StalenessRule(), [1.0, 1 / 2, 1 / 3, 1 / 11]),
        (StalenessRule("constant", alpha=0.6), [0.6, 0.6, 0.6, 0.6]),
        (StalenessRule("polynomial", a=0.5), [1.0, 2**-0.5, 3**-0.5, 11**-0.5]),
        (StalenessRule("hinge", a=10.0, b=1.0), [1.0, 1.0, 1 / 11, 1 / 91]),
        (StalenessRule("inverse", alpha=0.8), [0.8, 0.4, 0.8 / 3, 0.8 / 11]),
        (StalenessRule(alpha_max=0.4), [0.4, 0.4, 1 / 3, 1 / 11]),
    ],
)
def test_the_weight_falls_with_staleness_as_the_rule_says(
    rule: StalenessRule, expected: list[float]
) -> None:
    assert [rule.weight(s) for s in (0, 1, 2, 10)] == pytest.approx(expected)


@pytest.mark.parametrize(
    "wrong", [{"alpha": 0.0}, {"alpha": 1.1}, {"alpha_max": 0.0}, {"a": 0.0}, {"b": -1.0}]
)
def test_an_impossible_rule_is_the_users_error(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        StalenessRule(**wrong)  # type: ignore[arg-type]


# ---- asynchronous ------------------------------------------------------------------------------


def test_an_asynchronous_merge_keeps_the_rest_of_the_global_model() -> None:
    decision = offer(AsyncStaleness(8), A, based_on=4, version=5)
    assert decision.merge == Merge(0.5, (Part(A, 0.5, payload("a/0/1")),), refresh=(A,))
    assert decision.refresh == (A,)
    assert decision.settled == ((A, update("a/0/1", version=4)),)


@pytest.mark.parametrize("wrong", [float("nan"), -1.0, 0.0, 2.0, None, "0.5"])
def test_a_weight_that_a_users_policy_must_not_have_is_named(wrong: object) -> None:
    class Own(AsyncStaleness):
        def weight(self, offer: Offer) -> float:
            return wrong  # type: ignore[return-value]

    with pytest.raises(
        RunFailed, match=r"Own.weight returned .* of a; it must be a number above 0"
    ):
        offer(Own(8), A, based_on=4, version=5)


@pytest.mark.parametrize(("behind", "refused"), [(0, False), (3, False), (4, True), (-1, True)])
def test_an_update_outside_the_allowed_delay_is_refused_and_answered(
    behind: int, refused: bool
) -> None:
    decision = offer(AsyncStaleness(3), A, based_on=10 - behind, version=10)
    assert decision.refused == refused
    assert (decision.merge is None) == refused
    assert decision.refresh == (A,)
    assert decision.settled


def test_a_negative_maximum_delay_is_the_users_error() -> None:
    with pytest.raises(ConfigError, match="-1"):
        AsyncStaleness(-1)
    with pytest.raises(ConfigError, match="-1"):
        Buffered(1, -1)


# ---- buffered ----------------------------------------------------------------------------------


def test_buffered_devices_go_on_at_once_and_the_last_one_moves_the_model() -> None:
    optimizer = ServerOptimizer(0.7, 0.9)
    buffered = Buffered(3, 8, server_optimizer=optimizer)
    for device in (C, A):
        decision = offer(buffered, device)
        assert decision.merge is None
        assert decision.refresh == (device,)
        assert decision.settled
    decision = offer(buffered, B)
    assert decision.merge is not None
    assert decision.merge.keep == 1.0
    assert decision.merge.server_optimizer == optimizer
    assert [part.device for part in decision.merge.parts] == [A, B, C]
    assert decision.refresh == (B,)


def test_buffered_deltas_are_scaled_by_staleness_and_averaged_over_the_buffer() -> None:
    buffered = Buffered(2, 8, rule=StalenessRule("polynomial", a=0.5))
    offer(buffered, A, based_on=0, version=3)
    assert weights(offer(buffered, B, based_on=3, version=3)) == {A: 0.25, B: 0.5}


def test_a_delta_of_the_average_staleness_weighs_one() -> None:
    buffered = Buffered(2, 8, rule=StalenessRule("polynomial", a=0.5), average=3.0)
    offer(buffered, A, based_on=0, version=3)
    assert weights(offer(buffered, B, based_on=3, version=3)) == {A: 0.5, B: 1.0}
    offer(buffered, A, based_on=0, version=8)
    late = weights(offer(buffered, B, based_on=0, version=3))[A]
    assert late == pytest.approx((1 + 8) ** -0.5 / (1 + 3) ** -0.5 / 2)


def test_an_average_staleness_below_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 0, got -1"):
        Buffered(2, 8, average=-1.0)


def test_hinge_and_polynomial_fall_as_published_unless_told_otherwise() -> None:
    assert StalenessRule("hinge").weight(6) == 1 / (10 * (6 - 4) + 1)
    assert StalenessRule("polynomial").weight(3) == 0.5
    assert StalenessRule("hinge", a=0.5).weight(6) == 0.5


def test_alpha_falls_after_the_merges_that_were_named() -> None:
    policy = AsyncStaleness(8, StalenessRule("constant", alpha=0.8), AlphaDecay(0.5, (2, 5)))
    found = [weights(offer(policy, A, based_on=v, version=v))[A] for v in range(7)]
    assert found == [0.8, 0.8, 0.4, 0.4, 0.4, 0.2, 0.2]


@pytest.mark.parametrize(
    ("factor", "at", "message"),
    [(0.0, (), "above 0"), (1.5, (), "at most 1"), (0.5, (-1,), "numbers of merges")],
)
def test_a_decay_that_would_not_fall_is_refused(
    factor: float, at: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        AlphaDecay(factor, at)


def test_one_device_may_fill_the_buffer_alone() -> None:
    buffered = Buffered(2, 8)
    offer(buffered, A)
    decision = offer(buffered, A)
    assert decision.merge is not None
    assert [part.device for part in decision.merge.parts] == [A, A]


def test_an_accepted_delta_stays_when_its_device_leaves() -> None:
    buffered = Buffered(2, 8)
    offer(buffered, A)
    buffered.left(A, 0.0)
    assert buffered.reconsider(1.0) == WAIT
    assert weights(offer(buffered, B)).keys() == {A, B}


def test_a_stale_delta_is_refused_and_answered() -> None:
    decision = offer(Buffered(1, 2), A, based_on=0, version=3)
    assert decision.refused
    assert decision.refresh == (A,)
    assert decision.merge is None


def test_a_buffer_must_hold_something() -> None:
    with pytest.raises(ConfigError, match="got 0"):
        Buffered(0, 1)
