from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.reproduction.catalogue import read_catalogue
from fedoptima.reproduction.ceilings import Ceiling, read_ceilings
from fedoptima.reproduction.document import Reproduction, as_markdown
from fedoptima.reproduction.planned import Choice, queue
from fedoptima.reproduction.records import Made, Record, Records
from tests.reproduction.test_catalogue import PAPER

CEILING = Ceiling(0.9, 0.89, 0.88, 0.91, seeds=3, epochs=10, configurations=12)


def test_the_ceiling_is_read_from_what_centralised_training_left(tmp_path: Path) -> None:
    plain = {
        "configurations": [{}] * 12,
        "runs": [{"seed": seed, "epochs": [5, 10]} for seed in (1, 2, 3)],
        "test accuracy": {
            "last epoch, mean": 0.89,
            "last epoch, lowest and highest": [0.88, 0.91],
            "best epoch, mean": 0.9,
        },
    }
    file = tmp_path / "testbed_a_transformer6_sst2.json"
    file.write_text(json.dumps(plain))
    assert read_ceilings(tmp_path) == {"a_text": CEILING}
    file.write_text(json.dumps(plain | {"no ceiling": "half of the data"}))
    assert read_ceilings(tmp_path) == {"a_text": replace(CEILING, no_ceiling="half of the data")}
    file.write_text("{}")
    with pytest.raises(ConfigError, match=r"sst2.json: cannot be read .*tools.centralised"):
        read_ceilings(tmp_path)


def test_every_method_stands_beside_the_ceiling(tmp_path: Path) -> None:
    catalogue, records = read_catalogue(PAPER), Records(tmp_path)
    figures = catalogue.chosen(["accuracy-text", "throughput-text"])
    planned = queue(catalogue, figures, Choice(seeds=1))
    for run in planned["accuracy-text"]:
        if run.case.label in ("fedoptima", "oafl") and run.workload == "a_text":
            best = 0.81 if run.case.method == "oafl" else 0.855
            figures_of = {"seconds": 10.0, "epochs": 5.0, "best_accuracy": best}
            made = Made("fedoptima reproduce", "abc", "2026-11-16", "here", "0")
            identity = (run.id, run.workload, run.kind, run.case.method, {}, run.seed)
            records.add(Record(*identity, figures_of, [(10.0, 5.0, best)], made))
    found = Reproduction(catalogue, planned, records, {}, {"a_text": CEILING})
    text = as_markdown(found, more=["## Between", ""])
    assert "| fedoptima | 1 | 85.5 | 95.0 |" in text
    assert "| oafl | 1 | 81.0 | 90.0 | never |" in text
    assert f"{CEILING.words}; in fewer epochs than the methods have, so it may be too low." in text
    assert "Not run yet: *fl*, *fedasync*, *fedbuff*, *splitfed*, " in text
    assert text.index("## Between") < text.index("## Figures")
    bound = replace(CEILING, no_ceiling="it is a lower bound")
    text = as_markdown(replace(found, ceilings={"a_text": bound}))
    assert "This is not a ceiling: it is a lower bound" in text
    assert "% of the ceiling" not in text
    assert "| fedoptima | 1 | 85.5 |" in text
