"""What one method has of its own in a recipe, and what comes before it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fedoptima.comparison.spec import About, describe, recipe_of
from fedoptima.config.load import load_recipe, of_method
from fedoptima.config.toml_text import toml_text
from fedoptima.core.errors import ConfigError
from fedoptima.experiments.given import Given
from fedoptima.experiments.simulation import simulate
from tests.cli.conftest import TINY

OWN = """
[methods.pipar]
micro_batches = 4
split.at = 2

[methods.pipar.training.device]
learning_rate = 0.5

[methods.fedasync]
alpha = 0.3
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "own.toml"
    file.write_text(TINY + OWN)
    return file


def about(path: Path, *changes: str, **more: object) -> About:
    given = {"methods": "all", "seeds": None, "options": {}, "target": None, "command": None}
    given |= {"dry": True, **more}
    return describe(load_recipe(path, changes), Given(), **given)  # type: ignore[arg-type]


def test_settings_of_one_method_reach_its_runs_alone(path: Path) -> None:
    compared = about(path)
    pipar, splitfed, fedasync = (
        recipe_of(compared, method, 1) for method in ("pipar", "splitfed", "fedasync")
    )
    assert pipar.method.options == {"micro_batches": 4}
    assert pipar.training.device.learning_rate == 0.5
    assert pipar.training.device.momentum == 0.9  # the recipe's, key by key
    assert pipar.split.at == 2
    assert fedasync.method.options == {"alpha": 0.3}
    for other in (splitfed, fedasync):
        assert other.training.device.learning_rate == 0.01
        assert other.split.at is None
    assert all(not one.methods for one in (pipar, splitfed, fedasync))  # they are in it


def test_a_single_run_of_that_method_has_them_too(path: Path, tmp_path: Path) -> None:
    compared = about(path)
    alone = simulate(path, method="pipar", dry=True, out=tmp_path / "run")
    same = simulate(recipe_of(compared, "pipar", 1), dry=True)
    assert alone.trace_digest == same.trace_digest
    assert alone.split == 2
    assert simulate(path, method="splitfed", dry=True).split != 2


def test_what_is_set_from_outside_comes_before_them(path: Path) -> None:
    changes = ("training.device+server.learning_rate=0.2", "method={name='pipar', micro_batches=8}")
    alone = of_method(load_recipe(path, changes))
    assert alone.training.device.learning_rate == alone.training.server.learning_rate == 0.2
    assert alone.method.options == {"micro_batches": 8}
    compared = about(path, changes[0], options={"pipar.micro_batches": 6, "pipar.split.at": 1})
    run = recipe_of(compared, "pipar", 1)
    assert run.training.device.learning_rate == 0.2
    assert run.method.options == {"micro_batches": 6}
    assert run.split.at == 1


def test_what_is_varied_comes_before_them_and_may_be_for_one_method_alone(path: Path) -> None:
    vary = {
        "pipar.training.device.learning_rate": [0.1, 0.2],
        "training.server.learning_rate": [0.3],
    }
    swept = about(path, vary=vary, methods=["pipar", "fl"])
    assert [case.label for case in swept.cases] == [
        "pipar, training.device.learning_rate=0.1, training.server.learning_rate=0.3",
        "pipar, training.device.learning_rate=0.2, training.server.learning_rate=0.3",
        "fl, training.server.learning_rate=0.3",
    ]
    rates = [recipe_of(swept, case, 1).training.device.learning_rate for case in swept.cases]
    assert rates == [0.1, 0.2, 0.01]
    with pytest.raises(ConfigError, match="is also given by"):
        about(path, vary={**vary, "training.device.learning_rate": [1.0]}, methods=["pipar"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["methods.pipr.micro_batches=2"], "methods.pipr: .* did you mean 'pipar'"),
        (["methods.pipar.micro_batch=2"], "pipar.micro_batch: .* did you mean 'micro_batches'"),
        (["methods.pipar.training.devise.momentum=0.1"], "did you mean 'device'"),
    ],
)
def test_a_mistake_in_them_is_named_before_anything_runs(
    path: Path, changes: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        about(path, *changes)


def test_a_recipe_written_as_toml_is_read_as_it_was(path: Path) -> None:
    recipe = load_recipe(path)
    table = recipe.model_dump(exclude_unset=True)
    text = toml_text(table)
    assert "[methods.pipar.training.device]" in text
    (path.parent / "again.toml").write_text(text)
    assert load_recipe(path.parent / "again.toml") == recipe
    odd = {"a b": 'x"\\\n', "list": [1, {"k": None, "v": 1e-05}], "none": None, "on": True}
    assert tomllib.loads(toml_text(odd)) == {
        "a b": 'x"\\\n', "list": [1, {"v": 1e-05}], "on": True
    }  # fmt: skip
