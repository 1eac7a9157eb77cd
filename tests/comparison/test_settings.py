"""Keys of settings: whom each reaches, and mistakes that are named with their remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from fedoptima.comparison.cases import Case, cases_of
from fedoptima.comparison.settings import check_options, check_varied, read_vary, sort_sets
from fedoptima.core.errors import ConfigError


def test_a_set_changes_the_recipe_or_is_for_methods_or_for_one_alone() -> None:
    own, options = sort_sets(
        ["stop.epochs=5", "method.barrier_timeout=9.0", "pipar.micro_batches=10", "method=x"]
    )
    assert own == ["stop.epochs=5", "method=x"]
    assert options == {"barrier_timeout": 9.0, "pipar.micro_batches": 10}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("fleet.scale=1,0.3", [1, 0.3]),
        ("training.device.name=sgd,adam", ["sgd", "adam"]),
        ('data.name="a,b","c"', ["a,b", "c"]),
        ("data.augment=true,false", [True, False]),
        ("fleet.churn={every=1.0, mbps=[1, 2]},{every=2.0, mbps=[1, 2]}", None),
        ("split.at=2", [2]),
    ],
)
def test_values_are_as_in_toml_or_bare_words(text: str, values: list[object] | None) -> None:
    [found] = read_vary([text]).values()
    if values is None:
        values = [{"every": every, "mbps": [1, 2]} for every in (1.0, 2.0)]
    assert found == values


@pytest.mark.parametrize(
    ("varied", "message"),
    [
        (["fleet.scale"], "write it as KEY=A,B,C"),
        (["fleet.scale="], "write it as KEY=A,B,C"),
        (["fleet.scale=1", "fleet.scale=2"], "is given twice"),
        (["pipr.micro_batches=2"], "did you mean 'pipar.micro_batches'"),
        (["traning.batch_size=2"], "did you mean 'training.batch_size'"),
        (["zzz=1"], "neither a key of the recipe nor a method; keys are name, seed"),
    ],
)
def test_a_vary_that_cannot_be_meant_is_refused(varied: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_vary(varied)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("pipar.micro_batch", "pipar does not have this option; did you mean 'micro_batches'?"),
        ("oafl.alpha", "oafl is not among the methods that are run .*; add it to --methods"),
        ("pipr.micro_batches", "did you mean 'pipar.micro_batches'"),
        ("activation_cup", "none of fedoptima, pipar has this option; did you mean"),
        ("name", "takes its methods from --methods"),
    ],
)
def test_an_option_that_no_method_takes_is_refused(option: str, message: str) -> None:
    check_options({"pipar.micro_batches": 2, "activation_cap": 4}, ["fedoptima", "pipar"], {})
    with pytest.raises(ConfigError, match=message):
        check_options({option: 1}, ["fedoptima", "pipar"], {})


@pytest.mark.parametrize(
    ("vary", "options", "message"),
    [
        ({"seed": [1]}, {}, "takes it from --seeds or --seed"),
        ({"method.name": ["fl"]}, {}, "takes it from --methods"),
        ({"fleet.scale": []}, {}, "at least one value"),
        ({"fleet.scale": [1, 1]}, {}, "a value is given twice"),
        ({"method.micro_batch": [1]}, {}, "did you mean 'micro_batches'"),
        ({"oafl.alpha": [1]}, {}, "oafl is not among"),
        (
            {"method.micro_batches": [1, 2]},
            {"pipar.micro_batches": 4},
            "pipar's micro_batches is also given by pipar.micro_batches; leave one out",
        ),
        (
            {"method.micro_batches": [1, 2], "pipar.micro_batches": [4]},
            {},
            "is also given by method.micro_batches",
        ),
    ],
)
def test_what_cannot_be_varied_is_refused(
    vary: Mapping[str, Sequence[object]], options: Mapping[str, object], message: str
) -> None:
    check_varied({"pipar.micro_batches": [1], "fleet.scale": [1]}, {"alpha": 1.0}, ["pipar"], {})
    with pytest.raises(ConfigError, match=message):
        check_varied(vary, options, ["fedoptima", "pipar"], {})


def test_the_options_of_a_method_in_a_users_code_are_reached_by_its_name() -> None:
    own, mine = {"my_package.rules:mine": ["mu", "alpha"]}, "my_package.rules:mine"
    check_options({f"{mine}.mu": 1, "alpha": 2}, ["fl", mine], own)
    with pytest.raises(ConfigError, match=r"my_package.rules:mine does not have this option"):
        check_options({f"{mine}.nu": 1}, ["fl", mine], own)
    vary = {f"{mine}.mu": [1, 2], "method.alpha": [0.5]}
    labels = [case.label for case in cases_of(["fl", mine, "oafl"], vary, own)]
    assert labels == [
        "fl",
        f"{mine}, mu=1, alpha=0.5",
        f"{mine}, mu=2, alpha=0.5",
        "oafl, alpha=0.5",
    ]
    with pytest.raises(ConfigError, match="is not loaded"):  # its options are not known: no import
        check_options({f"{mine}.mu": 1}, ["fl", mine], {})


def test_a_method_has_the_combinations_of_what_reaches_it() -> None:
    vary = {"method.activation_cap": [4, 8], "pipar.micro_batches": [2, 5], "fleet.scale": [1]}
    labels = [case.label for case in cases_of(["fedoptima", "pipar", "fl"], vary, {})]
    assert labels == [
        "fedoptima, activation_cap=4, fleet.scale=1",
        "fedoptima, activation_cap=8, fleet.scale=1",
        "pipar, micro_batches=2, fleet.scale=1",
        "pipar, micro_batches=5, fleet.scale=1",
        "fl, fleet.scale=1",
    ]


def test_every_case_has_a_folder_of_its_own_whatever_its_values() -> None:
    assert Case("fl", (("fleet.scale", 0.3),)).folder(2) == "fl-fleet.scale=0.3-seed2"
    odd = [Case("fl", (("data.directory", text),)).folder(1) for text in ("a/b", "a b", "x" * 500)]
    assert len(set(odd)) == 3
    for name in odd:
        assert "/" not in name
        assert len(name) < 200
