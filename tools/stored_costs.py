"""What the package stores about its own models and data sets, so that a dry run needs no torch.

python -m tools.stored_costs            compare the files in the package with torch and the lists
python -m tools.stored_costs --write    renew them: a model, a data set or a counting rule changed
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fedoptima
from fedoptima.core.errors import ConfigError
from fedoptima.core.method import ServerTraining
from fedoptima.core.plan import BlockProfile, block_to_plain
from fedoptima.data import outline
from fedoptima.data.dataset import Dataset
from fedoptima.data.images import ImageSource
from fedoptima.data.layouts import of_the_files
from fedoptima.data.registry import DATASETS
from fedoptima.models.registry import MODELS, build_model
from fedoptima.preprocess import stored_costs
from fedoptima.preprocess.auxiliary import DEPTHS, LIGHT
from fedoptima.preprocess.plan import PlanSettings
from fedoptima.preprocess.sides import MeasuredCosts
from fedoptima.preprocess.split import Entry

PACKAGE = Path(fedoptima.__file__).parent
COSTS = PACKAGE / "preprocess" / stored_costs.FILE
OUTLINES = PACKAGE / "data" / outline.FILE

_BATCH = 2  # samples: batch-norm layers refuse a batch of one


def variants(name: str) -> Iterator[dict[str, Any]]:
    """The options of a data set that are worth storing: its defaults, and every division."""
    source = DATASETS[name]
    yield of_the_files(source.defaults)
    if isinstance(source, ImageSource):
        return
    for division in source.facts:
        if division and division != source.defaults["division"]:
            yield {**of_the_files(source.defaults), "division": division}


def outline_of(name: str) -> dict[str, Any]:
    source = DATASETS[name]
    complete = []
    for options in variants(name):
        data = source.stand_in(options)
        complete.append(
            {
                "options": options,
                "facts": dict(data.facts),
                "per_class": torch.bincount(data.train.labels, minlength=data.classes).tolist(),
            }
        )
    return {
        "defaults": of_the_files(source.defaults),
        "comes_with": source.comes_with,
        "train": source.train,
        "classes": source.classes if isinstance(source, ImageSource) else data.classes,
        "layouts": [[list(layout.folders), list(layout.files)] for layout in source.layouts],
        "complete": complete,
    }


def datasets_for(model: str) -> Iterator[tuple[Dataset, Tensor]]:
    """Data sets that the model can be built for, each with a batch as the model takes it."""
    for name, source in DATASETS.items():
        if source.kind == MODELS[model].kind:
            for options in variants(name):
                data = source.stand_in(options)
                inputs = data.test.inputs
                yield data, data.prepare(inputs[:1].expand(_BATCH, *inputs.shape[1:]))


def costs_of(
    model: str, *, most_splits: int | None = None, traffic: bool = True
) -> list[dict[str, Any]]:
    """``most_splits``: of what depends on where the model is cut; None: all."""
    found: list[dict[str, Any]] = []
    for data, example in datasets_for(model):
        if any(known["facts"] == data.facts for known in found):
            continue
        with suppress(ConfigError):  # images that are too small for it
            network = build_model(model, data.facts, {})
            costs = measured(network, example, data.classes, most_splits, traffic)
            found.append({"facts": dict(data.facts), **costs})
    return found


def measured(
    network: nn.Module, example: Tensor, classes: int, most: int | None, traffic: bool
) -> dict[str, Any]:
    costs = {
        variant: MeasuredCosts(
            network,
            example,
            PlanSettings(
                ServerTraining.SHARED, 1, classes, seed=0, auxiliary=variant, traffic=traffic
            ),
        )
        for variant in (*DEPTHS, LIGHT)
    }
    blocks = list(costs["default"].blocks().blocks)
    for split in range(1, len(blocks))[:most]:
        blocks[split] = with_entry(blocks[split], costs["default"].entry(split))
    return {
        "blocks": [block_to_plain(block) for block in blocks],
        "auxiliary": {
            variant: [
                block_to_plain(auxiliary)
                for split in range(1, len(blocks))[:most]
                if (auxiliary := each.auxiliary(split)) is not None
            ]
            for variant, each in costs.items()
        },
    }


def with_entry(block: BlockProfile, entry: Entry) -> BlockProfile:
    return replace(block, entry_flops=entry.flops, entry_moved=entry.moved)


def found() -> dict[Path, Mapping[str, Any]]:
    return {
        COSTS: {model: costs_of(model) for model in MODELS},
        OUTLINES: {name: outline_of(name) for name in DATASETS},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="renew the files in the package")
    write = parser.parse_args().write
    changed = []
    for path, content in found().items():
        if write:
            lines = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in content.items())
            path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        elif json.loads(path.read_text(encoding="utf-8")) != content:
            changed.append(path.name)
    if changed:
        print("not as measured: " + ", ".join(changed))
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
