from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fedoptima.core.errors import ConfigError
from fedoptima.models.registry import MODELS, build_model

IMAGE = {"channels": 1, "image_size": 32, "classes": 3}
TEXT = {"vocabulary": 20, "length": 6, "classes": 3}
TABLE = {"features": 5, "classes": 3}
DATA = {
    "image": (IMAGE, torch.rand(2, 1, 32, 32)),
    "text": (TEXT, torch.ones(2, 6, dtype=torch.int64)),
    "table": (TABLE, torch.rand(2, 5)),
}


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_models.py").write_text(
        "from torch import nn\n"
        "def one(classes, width=4):\n"
        "    return nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.Linear(width, classes))\n"
        "def every(**facts):\n"
        "    model = nn.Flatten()\n"
        "    model.facts = facts\n"
        "    return model\n"
        "def none():\n"
        "    return None\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "own_models"


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_built_from_the_facts_of_its_data(name: str) -> None:
    facts, example = DATA[MODELS[name].kind]
    options = {"layers": 2, "heads": 4} if name == "transformer" else {}
    model = build_model(name, facts, options)
    assert model(example).shape == (2, 3)


def test_options_win_over_facts() -> None:
    assert build_model("vgg5", IMAGE, {"classes": 8})(torch.rand(2, 1, 32, 32)).shape == (2, 8)


def test_an_unknown_model_is_refused_with_the_nearest_name_and_the_list() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'vgg5'.*known: vgg5, mobilenet_v3_large"):
        build_model("vgg-5", IMAGE, {})


def test_a_text_model_on_images_is_refused() -> None:
    with pytest.raises(ConfigError, match="reads text, but the data are image; choose one of vgg5"):
        build_model("transformer6", IMAGE, {})


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"model.class = 3: vgg5 has no .*'classes'"):
        build_model("vgg5", IMAGE, {"class": 3})


@pytest.mark.parametrize("value", ["ten", 1.5, True])
def test_an_option_of_the_wrong_type_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="must be a whole number"):
        build_model("vgg5", IMAGE, {"classes": value})


def test_a_fact_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="needs layers, heads, which the data do not provide"):
        build_model("transformer", TEXT, {})


def test_a_users_function_gets_the_arguments_it_accepts(own_models: str) -> None:
    model = build_model(f"{own_models}:one", IMAGE, {"width": 9})
    assert model(torch.rand(2, 1, 4, 4)).shape == (2, 3)
    assert isinstance(model, nn.Sequential)
    assert model[1].out_features == 9
    everything = build_model(f"{own_models}:every", IMAGE, {"depth": 2})
    assert everything.facts == IMAGE | {"depth": 2}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:build", "No module named 'no_such_module'"),
        ("own_models:build", "has no attribute 'build'"),
        (":build", "cannot be imported"),
        ("own_models:number", "is a int, not a function"),
        ("own_models:none", "returned NoneType, not a torch.nn.Module"),
    ],
)
def test_an_import_path_that_leads_to_no_model_is_refused(
    own_models: str, path: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model(path, IMAGE, {})


def test_a_users_function_refuses_an_option_it_does_not_know(own_models: str) -> None:
    with pytest.raises(ConfigError, match="has no such option"):
        build_model(f"{own_models}:one", IMAGE, {"height": 9})


def test_an_image_model_on_a_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="reads image, but the data are table; choose one of mlp"):
        build_model("vgg5", TABLE, {})
