"""A mistake in a recipe is told with the file, the key, the value and the way out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedoptima.config.load import apply_override, load_recipe, validate
from fedoptima.config.schema import Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.sim.fleet import build_fleet

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))

GOOD = """
name = "mine"
[model]
name = "vgg5"
[data]
name = "digits"
partition = { kind = "dirichlet", alpha = 0.5 }
[fleet]
server.gflops = 3
[[fleet.devices]]
name = "pi"
count = 2
gflops = 0.5
mbps = 5
[training]
batch_size = 20
device = { learning_rate = 0.05 }
[stop]
epochs = 5
"""


def written(tmp_path: Path, text: str = GOOD) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_a_recipe_is_found_by_the_text_of_its_path(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert load_recipe(str(path)) == load_recipe(path)


def test_a_recipe_is_read_with_its_defaults(tmp_path: Path) -> None:
    recipe = load_recipe(written(tmp_path))
    assert recipe.method.name == "fedoptima"
    assert recipe.data.validation == "test"
    assert recipe.fleet.devices[0].count == 2
    assert recipe.training.device.learning_rate == 0.05
    assert recipe.training.server.learning_rate == 0.01
    assert recipe.stop.epochs == 5


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("batch_size = 20", "batch_sise = 20", r"training\.batch_sise: unknown key.*'batch_size'"),
        ("alpha = 0.5", "alhpa = 0.5", r"data\.partition\.alhpa: unknown key.*'alpha'"),
        ('name = "mine"', 'name = "mine"\nthreads = 1025', r"threads = 1025: .* equal to 1024"),
        ('name = "mine"', 'name = "mine"\nworkers = 1025', r"workers: 1025 .* 1 to 1024"),
        ("[data]", "[data]\nworkers = 65", r"data\.workers = 65: .*less than or equal to 64"),
        ("mbps = 5", "mbits = 5", r"fleet\.devices\.0\.mbits: unknown key"),
        ("[stop]", "[stop]\nfoo = 1", r"stop\.foo: unknown key; known here: rounds, epochs"),
        (
            "batch_size = 20",
            "learning_rate = 0.1",
            r"it is a key of training\.device and of training",
        ),
        ('name = "mine"', 'name = "mine"\nepochs = 3', "epochs: unknown key; it is a key of stop"),
        ('name = "mine"', 'nmae = "mine"', r"nmae: unknown key; did you mean 'name'"),
        ("batch_size = 20", 'batch_size = "20"', r"training\.batch_size = '20': .*integer"),
        ("batch_size = 20", "batch_size = 20.5", r"training\.batch_size = 20\.5: .*integer"),
        ("batch_size = 20", "batch_size = true", r"training\.batch_size = True: .*integer"),
        ("batch_size = 20", "batch_size = 0", r"batch_size = 0: .*greater than or equal to 1"),
        ("mbps = 5", "mbps = -5", r"fleet\.devices\.0\.mbps = -5: .*greater than 0"),
        ("mbps = 5", "mbps = 0", r"fleet\.devices\.0\.mbps = 0: .*greater than 0"),
        ("mbps = 5", "mbps = inf", r"fleet\.devices\.0\.mbps = inf: .*finite"),
        ("mbps = 5", "mbps = nan", r"fleet\.devices\.0\.mbps = nan: "),
        ("gflops = 0.5", "gflops = 0", r"gflops = 0: .*greater than 0"),
        ("count = 2", "count = 0", r"count = 0: .*greater than or equal to 1"),
        ('name = "pi"', 'name = "a b"', r"fleet\.devices\.0\.name = 'a b'"),
        ("[stop]\nepochs = 5", "[stop]", r"stop: nothing stops this run: give rounds"),
        ("[stop]\nepochs = 5", "", r"stop: is missing"),
        (
            "[stop]\nepochs = 5",
            'schedule = { kind = "cosine" }\n[stop]\npatience = 5',
            r"training\.schedule follows .*add stop\.epochs",
        ),
        ("epochs = 5", 'epochs = "5"', r"stop\.epochs = '5': .*number"),
        ("epochs = 5", "epochs = nan", r"stop\.epochs = nan: .*finite"),
        ("epochs = 5", "epochs = -1", r"stop\.epochs = -1: .*greater than 0"),
        ("epochs = 5", "target_accuracy = 95", r"stop\.target_accuracy = 95: .*at most 1"),
        ('kind = "dirichlet"', 'kind = "dirichle"', r"partition\.kind = 'dirichle': .*'iid'"),
        ("alpha = 0.5", "alpha = -1", r"partition\.alpha = -1"),
        ('kind = "dirichlet"', 'kind = "file"', r"partition: kind = 'file' needs file"),
        ('kind = "dirichlet"', 'kind = "label"', r"partition: kind = 'label' needs labels"),
        ('kind = "dirichlet"', 'kind = "quantity"', r"kind = 'quantity' needs power or shares"),
        ("alpha = 0.5", 'column = "x"', r"column belongs to kind = 'column', not to 'dirichlet'"),
        (
            'kind = "dirichlet"',
            'kind = "quantity", power = 1, shares = [1, 2]',
            r"partition: give either power or shares, not both",
        ),
        (
            'kind = "dirichlet"',
            'kind = "quantity", shares = [1, 0]',
            r"data\.partition\.shares\.1 = 0: .*greater than 0",
        ),
        (
            'kind = "dirichlet"',
            'kind = "quantity", shares = []',
            r"data\.partition\.shares = \(\): .*at least 1 item",
        ),
        ('name = "digits"', 'name = "digits"\nvalidation = 1.5', r"data\.validation: 1\.5 is"),
        ('name = "digits"', 'name = "digits"\nvalidation = "tst"', r"data\.validation: 'tst' is"),
        ("learning_rate = 0.05", "learning_rate = 0", r"device\.learning_rate = 0: .*greater"),
        ("learning_rate = 0.05", "momentum = 1.0", r"device\.momentum = 1\.0: .*less than 1"),
        (
            "learning_rate = 0.05",
            "nesterov = true, momentum = 0",
            r"training\.device: nesterov = true needs momentum",
        ),
        (
            "learning_rate = 0.05",
            'name = "adam", momentum = 0.9',
            r"device\.momentum: is read for name = .sgd. only, not for adam.*options = { betas",
        ),
        (
            "[training]",
            '[methods.fl]\ntraining.server = { name = "RMSprop", nesterov = true }\n[training]',
            r"methods\.fl\.training\.server\.nesterov: is read for .* not for RMSprop",
        ),
        ("learning_rate = 0.05", "weight_decay = inf", r"weight_decay = inf: .*finite"),
        ("[training]", "[split]\nat = 0\n[training]", r"split\.at: 0 is neither"),
        ("server.gflops = 3", "", r"fleet: give a preset .*or a server and at least one group"),
        (
            "server.gflops = 3",
            "server.gflops = 3\nserver.seconds = { forwards = 1 }",
            r"fleet\.server\.seconds\.forwards.* = 'forwards': .*'forward'",
        ),
        (
            "server.gflops = 3",
            'server.gflops = 3\nchanges = [{ at = 1, device = "pi-1", kind = "bandwidth" }]',
            r"fleet\.changes\.0: mbps belongs to kind = 'bandwidth'",
        ),
        (
            "server.gflops = 3",
            "server.gflops = 3\nchurn = { leave_probability = 0.1, mbps = [50, 25] }",
            r"fleet\.churn: the slower bandwidth comes first",
        ),
    ],
)
def test_a_mistake_names_file_key_and_value(
    good: str, bad: str, message: str, tmp_path: Path
) -> None:
    assert GOOD.count(good) >= 1
    path = written(tmp_path, GOOD.replace(good, bad, 1))
    with pytest.raises(ConfigError, match=rf"mine\.toml: .*{message}"):
        load_recipe(path)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("batch_size = 20", "batch_size = 0").replace("mbps = 5", "mbps = -5")
    with pytest.raises(ConfigError) as caught:
        load_recipe(written(tmp_path, text))
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert all("mine.toml: " in line for line in lines)


def test_a_file_that_is_not_there_is_told_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").touch()
    Path("recipes").mkdir()
    Path("recipes/demo.toml").touch()
    with pytest.raises(ConfigError, match=r"mien\.toml: no such file; did you mean .*mine\.toml"):
        load_recipe(tmp_path / "mien.toml")
    for bare in ("demo", "demo.toml", "demos"):
        with pytest.raises(ConfigError, match=r"no such file; did you mean recipes/demo\.toml"):
            load_recipe(bare)
    there = r"no such file; there are mine\.toml, recipes/demo\.toml"
    with pytest.raises(ConfigError, match=there):
        load_recipe("something_else.toml")


def test_a_mistake_may_be_in_what_was_set(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(ConfigError, match=r"mine\.toml with --set: stop\.epoch: unknown key"):
        load_recipe(path, ["stop.epoch=3"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model=vgg5", r"model = 'vgg5': must be a table; write model\.name = 'vgg5'"),
        ("fleet=testbed_a", r"must be a table; write fleet\.preset = 'testbed_a'"),
        ("data.partition=iid", r"must be a table; write data\.partition\.kind = 'iid'"),
        ("training=5", "training = 5: must be a table, with the keys batch_size, "),
        ("stop=5", "stop = 5: must be a table, with the keys rounds, epochs, "),
        ("workers=-1", "workers: -1 is neither a number of processes from 1 to 1024 nor 'auto'$"),
    ],
)
def test_what_is_to_be_a_table_or_a_number_is_said_in_words_of_a_recipe(
    tmp_path: Path, override: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe(written(tmp_path), [override])


def test_momentum_of_a_recipe_does_not_keep_another_optimiser_from_being_set(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, GOOD.replace("learning_rate = 0.05", "momentum = 0.8"))
    recipe = load_recipe(path, ["training.device.name=adam"])
    assert recipe.training.device.name == "adam"
    assert validate(Recipe, recipe.model_dump(), "read back") == recipe
    with pytest.raises(ConfigError, match=r"device\.momentum: is read for .* not for adam"):
        load_recipe(path, ["training.device.momentum=0.5", "training.device.name=adam"])


def test_a_folder_and_a_file_that_is_no_toml_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        load_recipe(tmp_path)
    with pytest.raises(ConfigError, match=r"mine\.toml: not valid TOML: .*line 1"):
        load_recipe(written(tmp_path, "name = mine"))


def test_a_file_of_another_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(GOOD.replace("mine", "größe").encode("latin-1"))
    with pytest.raises(ConfigError, match=r"mine\.toml: not valid TOML"):
        load_recipe(path)


@pytest.mark.parametrize(
    ("override", "place", "value"),
    [
        ("method.name=fl", ("method", "name"), "fl"),
        ('method.name="fl"', ("method", "name"), "fl"),
        ("stop.epochs=7.5", ("stop", "epochs"), 7.5),
        ("seed=3", ("seed",), 3),
        ("seed = 3", ("seed",), 3),
        ("data.augment=false", ("data", "augment"), False),
        ("data.directory=/some/where", ("data", "directory"), "/some/where"),
        ("name=a=b", ("name",), "a=b"),
        ("fleet.churn.mbps=[25, 50]", ("fleet", "churn", "mbps"), [25, 50]),
        ("stop={rounds = 2}", ("stop",), {"rounds": 2}),
    ],
)
def test_an_override_is_a_key_and_a_toml_value_or_a_bare_word(
    override: str, place: tuple[str, ...], value: object
) -> None:
    table: dict[str, object] = {"stop": {"epochs": 5}}
    apply_override(table, override)
    found: object = table
    for part in place:
        assert isinstance(found, dict)
        found = found[part]
    assert found == value


@pytest.mark.parametrize("override", ["stop.epochs", "=5", ".epochs=5", "stop..epochs=5", ""])
def test_an_override_without_key_or_value_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match=r"write it as key\.path=value"):
        apply_override({}, override)


def test_an_override_into_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--set seed\.x=1: seed is a value, not a table"):
        apply_override({"seed": 3}, "seed.x=1")


def test_an_override_reaches_an_item_of_an_array_by_its_number() -> None:
    table = {"fleet": {"devices": [{"gflops": 1.0}, {"gflops": 2.0}]}}
    apply_override(table, "fleet.devices.1.gflops=3")
    assert table == {"fleet": {"devices": [{"gflops": 1.0}, {"gflops": 3}]}}
    for missing in ("2", "first"):
        with pytest.raises(ConfigError, match=rf"'{missing}' is not one of the items here, 0 to 1"):
            apply_override(table, f"fleet.devices.{missing}.gflops=3")


def test_overrides_are_checked_as_the_file_is(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert load_recipe(path, ["stop.epochs=7", "training.batch_size=4"]).stop.epochs == 7
    with pytest.raises(ConfigError, match=r"stop\.epocs: unknown key; did you mean 'epochs'"):
        load_recipe(path, ["stop.epocs=7"])
    with pytest.raises(ConfigError, match=r"training\.batch_size = 'many'"):
        load_recipe(path, ["training.batch_size=many"])


def test_an_override_may_ask_for_a_preset_fleet_beside_ones_own_server(tmp_path: Path) -> None:
    text = GOOD.split("[fleet]")[0] + '[fleet]\npreset = "uniform"\n[stop]\nepochs = 1\n'
    path = written(tmp_path, text)
    fleet = build_fleet(load_recipe(path, ["fleet.server.gflops=1"]).fleet, 1)
    assert fleet.server.flops_per_second == 1e9
    assert len(fleet.devices) == 8


def test_a_resolved_recipe_reads_back_as_itself(tmp_path: Path) -> None:
    recipe = load_recipe(written(tmp_path), ["method.activation_cap=4", "data.validation=0.1"])
    again = validate(Recipe, recipe.model_dump(mode="json"), "config.json")
    assert again.model_dump(mode="json") == recipe.model_dump(mode="json")
    assert again.method.options == {"activation_cap": 4}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_of_the_repository_is_valid_and_its_fleet_can_be_built(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    fleet = build_fleet(recipe.fleet, recipe.seed)
    assert fleet.present_at_start > 0


def test_there_are_recipes() -> None:
    assert RECIPES


def test_numbers_of_numpy_are_numbers() -> None:
    table = {
        "model": {"name": "vgg5"},
        "data": {"name": "digits"},
        "stop": {"epochs": np.float32(2.5)},
        "seed": np.int64(3),
    }
    recipe = validate(Recipe, table, "here")
    assert (type(recipe.seed), recipe.seed, recipe.stop.epochs) == (int, 3, 2.5)
    for wrong in (np.float64(3.5), True, np.bool_(True)):
        with pytest.raises(ConfigError, match=r"seed = .*integer"):
            validate(Recipe, {**table, "seed": wrong}, "here")
