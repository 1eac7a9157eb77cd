"""A dry run with a data set's facts is the dry run with the data set itself."""

from __future__ import annotations

import pytest

from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.data.registry import DATASETS
from fedoptima.experiments.given import Given
from fedoptima.experiments.setup import prepare
from fedoptima.experiments.simulated_run import run_experiment
from tests.experiments.runs import FLEET

DATA = {
    "as the paper divides": {},
    "IID": {"partition": {"kind": "iid"}},
    "with validation data held out": {"validation": 0.1},
}


@pytest.mark.parametrize("data", DATA.values(), ids=list(DATA))
@pytest.mark.parametrize("method", ["fedoptima", "fl"])
def test_the_trace_has_the_same_digest(method: str, data: dict[str, object]) -> None:
    table = {
        "model": {"name": "vgg5"},
        "data": {"name": "digits", **data},
        "fleet": FLEET,
        "method": {"name": method},
        "training": {"batch_size": 32},
        "stop": {"epochs": 1.0},
    }
    recipe = validate(Recipe, table, "test")
    facts = Given(dataset=DATASETS["digits"].stand_in({}))
    assumed = run_experiment(prepare(recipe, facts, dry=True), dry=True)
    real = run_experiment(prepare(recipe), dry=True)
    assert assumed.trace_digest == real.trace_digest
    assert assumed.device_samples > 0
