from __future__ import annotations

from fedoptima.core.seeding import derive


def test_a_seed_depends_on_every_label_and_their_order() -> None:
    seeds = {
        derive(0),
        derive(1),
        derive(0, "a"),
        derive(0, "a", 1),
        derive(0, 1, "a"),
        derive(0, "a", 2),
    }
    assert len(seeds) == 6


def test_a_seed_is_the_same_on_every_machine_and_fits_into_63_bits() -> None:
    assert derive(7, "churn", 3, "d1") == 9170826510360086080
    assert all(0 <= derive(seed, "x") < 2**63 for seed in range(200))
