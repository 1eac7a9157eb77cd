"""Devices with data of their own: training data alone, from code or from files."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

import fedoptima
from fedoptima import ConfigError, Interrupted, Result
from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.types import NodeId
from fedoptima.engine.device import DeviceEngine
from fedoptima.experiments.join import DeviceSetup, build_workplace
from fedoptima.experiments.server_setup import instructions, prepare_server
from fedoptima.experiments.setup import prepare, prepare_run
from fedoptima.experiments.simulation import resume, simulate
from fedoptima.runtime.address import parse_address
from fedoptima.runtime.device.client import Workplace
from fedoptima.runtime.device.state import StateFile
from tests.experiments.test_interrupted import after
from tests.experiments.test_serve_and_join import Serving
from tests.support.network import DEADLINE, Work, tiny_recipe

ALONE = ("tests.experiments.own_data:tensors", "tests.experiments.own_data:loader")


def joined(address: str, folder: Path, own: dict[str, str]) -> list[Work]:
    works = [
        Work(
            partial(
                fedoptima.join, address, name=name, data=data, state=folder, allow_modules=["tests"]
            ),
            name,
        )
        for name, data in own.items()
    ]
    for work in works:
        work.start()
    return works


def without_fleet(method: str, **parts: object) -> Recipe:
    return tiny_recipe(method, fleet=None, deploy={"devices": 2}, stop={"rounds": 2}, **parts)


@pytest.mark.parametrize("method", ["fl", "fedoptima"])
def test_devices_train_on_data_that_have_no_test_part(method: str, tmp_path: Path) -> None:
    serving = Serving(recipe=without_fleet(method), out=tmp_path / "run", listen="127.0.0.1:0")
    assert serving._ready.wait(DEADLINE)
    own = {f"pi-{number}": data for number, data in enumerate(ALONE)}
    devices = joined(serving.address, tmp_path / "states", own)
    result = serving.work.answer()
    assert isinstance(result, Result)
    assert [device.answer() for device in devices] == [result.reason] * 2
    assert result.rounds == 2


def test_a_server_needs_test_data() -> None:
    recipe = without_fleet("fl", data={"name": ALONE[0]})
    with pytest.raises(ConfigError, match=r"returned tuple, without test data; return \(train, t"):
        prepare_run(recipe, 2)


# ---- files ---------------------------------------------------------------------------------------


def write_table(folder: Path, states: str, rows: int = 40) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        f"{row % 7},{row * 0.1:.1f},{states[row % len(states)]},w{row % 4}" for row in range(rows)
    ]
    (folder / "t.csv").write_text("\n".join(["a,b,state,who", *lines]) + "\n")
    return folder


def table_recipe(folder: Path | None, **parts: object) -> Recipe:
    table: dict[str, object] = {
        "model": {"name": "mlp", "hidden": 8},
        "data": {
            "name": "csv",
            "file": "t.csv",
            "label": "state",
            "directory": str(folder) if folder else None,
            "partition": {"kind": "column", "column": "who"},
        },
        "fleet": {
            "server": {"gflops": 1.0},
            "devices": [{"name": "d", "count": 2, "gflops": 0.1}],
        },
        "training": {"batch_size": 5},
        "stop": {"epochs": 2.0},
        "threads": 1,
    }
    return validate(Recipe, {**table, **parts}, "test")


def workplace(recipe: Recipe, name: str, folder: Path, data: str | None) -> Workplace:
    """What a device makes of the instructions of a server with this recipe."""
    setup = DeviceSetup(
        name=name,
        server=parse_address("127.0.0.1:1", option="--server"),
        state=StateFile(folder / "state.json"),
        data=data,
        directory=str(folder),
    )
    return build_workplace(setup, instructions(prepare_server(recipe)))


def first_batch(place: Workplace) -> tuple[Tensor, Tensor]:
    assert isinstance(place.engine, DeviceEngine)
    inputs, labels = place.engine._loader.batch(0)
    assert isinstance(inputs, Tensor)
    return inputs, labels


@pytest.mark.parametrize("method", ["fl", "fedoptima"])
def test_a_table_trains_from_a_recipe_alone(method: str, tmp_path: Path) -> None:
    recipe = table_recipe(write_table(tmp_path, "xyz"), method={"name": method})
    digests = {simulate(recipe, workers=workers).weights_digest for workers in (1, 2)}
    assert len(digests) == 1
    assert simulate(recipe, dry=True).epochs > 1


def test_a_run_on_a_table_resumes_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    recipe = table_recipe(write_table(tmp_path / "data", "xyz"))
    with pytest.raises(Interrupted):
        simulate(recipe, out=tmp_path / "run", interrupted=after(40))
    assert resume(tmp_path / "run").weights_digest == simulate(recipe).weights_digest


@pytest.mark.parametrize("method", ["fl", "fedoptima"])
def test_a_folder_of_images_trains_from_a_recipe_alone(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDOPTIMA_CACHE", str(tmp_path / "cache"))
    for label, colour in (("cat", "orange"), ("dog", "brown")):
        for number in range(10):
            path = tmp_path / "pets" / label / f"p{number % 3}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (9, 7 + number), colour).save(path)
    data = {
        "name": "image_folder",
        "directory": str(tmp_path / "pets"),
        "size": 4,
        "partition": {"kind": "column", "column": "folder"},
    }
    recipe = table_recipe(
        None, model={"name": "tests.e2e.tiny:model"}, data=data, method={"name": method}
    )
    digests = {simulate(recipe, workers=workers).weights_digest for workers in (1, 2)}
    assert len(digests) == 1


def test_a_device_has_its_own_table_with_some_of_the_classes(tmp_path: Path) -> None:
    recipe = table_recipe(write_table(tmp_path / "server", "xyz"))
    own = write_table(tmp_path / "device", "yz", rows=24)
    assert workplace(recipe, "new", own, "csv").samples == 24
    with pytest.raises(ConfigError, match=r"the label 'q' is none of data\.classes, x, y, z"):
        workplace(recipe, "new", write_table(tmp_path / "other", "yq"), "csv")


def test_a_devices_table_is_read_by_the_names_of_the_servers_columns(tmp_path: Path) -> None:
    recipe = table_recipe(write_table(tmp_path / "server", "xyz"))
    own = write_table(tmp_path / "device", "xyz")
    expected = first_batch(workplace(recipe, "new", own, "csv"))
    rows = [line.split(",") for line in (own / "t.csv").read_text().splitlines()]
    turned = [",".join([state, b, "0" if n else "more", who, a]) for n, (a, b, state, who) in
              enumerate(rows)]  # fmt: skip
    (own / "t.csv").write_text("\n".join(turned) + "\n")
    found = first_batch(workplace(recipe, "new", own, "csv"))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    renamed = (own / "t.csv").read_text().replace("state,b,", "state,bmi,")
    (own / "t.csv").write_text(renamed)
    with pytest.raises(ConfigError, match="has no column 'b'; it has state, bmi, more"):
        workplace(recipe, "new", own, "csv")


def test_a_device_reads_its_share_from_its_own_directory(tmp_path: Path) -> None:
    recipe = table_recipe(write_table(tmp_path / "server", "xyz"))
    copy = write_table(tmp_path / "device", "xyz")
    simulated = prepare(recipe).samples[NodeId("d-1")]
    assert workplace(recipe, "d-1", copy, None).samples == simulated
    with pytest.raises(ConfigError, match=r"data\.file = 't\.csv': was not found"):
        workplace(recipe, "d-1", tmp_path, None)


def test_a_server_cannot_name_files_outside_of_a_devices_directory(tmp_path: Path) -> None:
    recipe = table_recipe(write_table(tmp_path / "server", "xyz"))
    text = instructions(prepare_server(recipe))
    setup = DeviceSetup(
        name="d-1",
        server=parse_address("127.0.0.1:1", option="--server"),
        state=StateFile(tmp_path / "state.json"),
        directory=str(tmp_path / "server"),
    )
    for path in ("/etc/passwd", "../../etc/passwd"):
        with pytest.raises(ConfigError, match="must be inside the data directory"):
            build_workplace(setup, text.replace('"t.csv"', f'"{path}"'))
