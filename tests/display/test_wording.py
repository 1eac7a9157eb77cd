"""The same mistake, in the words of the command line and of Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedoptima
from fedoptima.core.errors import ConfigError
from fedoptima.display.wording import at_the_command_line, in_python
from fedoptima.experiments.simulation import simulate
from tests.experiments.runs import arguments, run

RECIPE = Path(__file__).parents[2] / "recipes" / "demo_digits.toml"


@pytest.mark.parametrize(
    ("said", "python"),
    [
        ("simulate(): stop.epochs = 0: must be more", "simulate(epochs=0): must be more"),
        ("simulate(): seed = -1: must be more", "simulate(seed=-1): must be more"),
        ("stop.hours = 0: must be more", "stop={'hours': 0}: must be more"),
        ("simulate(): model: is missing", "simulate(): model: is missing"),
        (
            "simulate(): training.device.momentum = 2: no",
            "simulate(training={'device': {'momentum': 2}}): no",
        ),
        ("simulate(): training.bach: unknown", "simulate(training={'bach': ...}): unknown"),
        ("method.name = 'x': unknown", "method='x': unknown"),
        ("add stop.epochs (or rounds)", "add epochs=... (or rounds)"),
        ("choose another --out", "choose another out=..."),
        ("resume it with --resume runs/a b", "resume it with fedoptima.resume('runs/a b')"),
        ("for example --set stop.epochs=10)", "for example epochs=10)"),
        ("recipe and --set epochs = 2", "recipe and epochs=2"),
        ("--tls-cert and --tls-key missing", "cert=... and key=... missing"),
        ("--gflops 0: must be more", "gflops=0: must be more"),
        ("--server x:y: no port", "server='x:y': no port"),
        ("--name is missing, e.g. --name pi-1", "name=... is missing, e.g. name='pi-1'"),
        ("without --weights", "without weights=True"),
        ("--allow-module m (in Python: allow_modules=['m'])", "allow_modules=['m']"),
        ("--vary method.cap=4,8", "vary={'method.cap': [4,8]}"),
        ("--vary seed: a sweep takes it from --seeds or --seed", "vary={'seed': ...}: a sweep "),
        ("device = 'gpu': use device = 'cpu'", "device='gpu': use device='cpu'"),
        ("--compute gpu: use 'cpu'", "device='gpu': use 'cpu'"),
    ],
)
def test_options_and_keys_are_told_as_arguments(said: str, python: str) -> None:
    known = {"model", "method", "training", "stop", "epochs", "seed", "device"}
    assert python in in_python(said, "simulate", known)


@pytest.mark.parametrize(
    "text", ["data/model.json: damaged", "'method.x' is varied", "data.csv has no header", "a--b"]
)
def test_what_is_neither_stays_as_it_is(text: str) -> None:
    assert in_python(text, "simulate", {"data", "model", "method"}) == text


def test_a_mistake_in_an_argument_is_told_as_the_call() -> None:
    with pytest.raises(ConfigError, match=r"^simulate\(epochs=0\): must be greater than 0"):
        run(epochs=0)


def test_a_mistake_in_a_recipe_is_told_in_the_recipes_words(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(RECIPE.read_text().replace("epochs = ", "epochs = -"))
    with pytest.raises(ConfigError, match=r"wrong\.toml: stop\.epochs = -"):
        simulate(wrong)
    with pytest.raises(ConfigError, match=r"method\.activation_cap = 0"):
        simulate(fedoptima.load_recipe(RECIPE, ["method.activation_cap=0"]), dry=True)


def test_of_a_recipe_and_arguments_each_is_told_in_its_own_words() -> None:
    recipe = fedoptima.load_recipe(RECIPE, ["split.at=99"])
    with pytest.raises(ConfigError, match=r"split\.at = 99"):
        simulate(recipe, epochs=1, dry=True)
    with pytest.raises(ConfigError, match=r"split={'at': 98}"):
        simulate(recipe, split={"at": 98}, dry=True)


def test_a_command_calls_the_same_functions_and_keeps_its_own_words() -> None:
    with at_the_command_line(), pytest.raises(ConfigError, match=r"stop\.epochs = 0"):
        run(epochs=0)
    with pytest.raises(ConfigError, match="epochs=0"):
        run(epochs=0)


def test_a_plan_is_asked_in_the_same_words() -> None:
    parts = {key: value for key, value in arguments().items() if key != "epochs"}
    with pytest.raises(ConfigError, match=r"split={'at': 9}"):
        fedoptima.plan(**{**parts, "split": {"at": 9}})  # type: ignore[arg-type]


def test_a_sweep_of_nothing_says_what_could_be_varied() -> None:
    with pytest.raises(ConfigError, match=r"vary={'method.activation_cap': \[4,8,32\]}"):
        fedoptima.sweep(RECIPE, {})


def test_a_folder_that_is_taken_names_the_function_that_resumes_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"out=\.\.\., or .*fedoptima\.resume_comparison\('"):
        fedoptima.compare(RECIPE, out=tmp_path)
