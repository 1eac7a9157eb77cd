"""A name becomes code only where that is allowed, and what is not allowed is not even imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedoptima.cli.app import app
from fedoptima.core.errors import ConfigError
from fedoptima.data.registry import load_dataset
from fedoptima.methods.registry import find_method
from fedoptima.models.registry import build_model
from fedoptima.named_code import ANY_CODE, NO_CODE, allow, installed, offered


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """my_package, with a function of its own and some of others; it leaves a mark when imported."""
    folder = tmp_path / "my_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from functools import partial\n"
        "from os import system\n"
        "from my_package.nets import build\n"
        "half = partial(system, 'true')\n"
    )
    mark = tmp_path / "it_ran"
    (folder / "nets.py").write_text(
        f"open({str(mark)!r}, 'w').close()\n"
        "def build(classes=2):\n"
        "    from torch import nn\n"
        "    return nn.Linear(1, classes)\n"
        "class Maker:\n"
        "    def __call__(self): return None\n"
        "maker = Maker()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield mark
    for name in [name for name in sys.modules if name.startswith("my_package")]:
        del sys.modules[name]


@pytest.mark.parametrize("modules", [(), ("my",), ("package",), ("my_package.other", "os")])
def test_what_is_not_allowed_is_not_imported(package: Path, modules: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refused:
        allow(modules).load("my_package.nets:build", "model.name")
    said = str(refused.value)
    assert said.startswith("model.name = 'my_package.nets:build': this code is named by a file")
    assert "--allow-module my_package" in said
    assert "allow_modules=['my_package']" in said
    assert not package.exists()


@pytest.mark.parametrize("modules", ["my_package", ["my_package.nets"], ["other", "my_package"]])
def test_a_package_allows_what_is_in_it(package: Path, modules: list[str] | str) -> None:
    found = allow(modules).load("my_package.nets:build", "model.name")
    assert found.__name__ == "build"
    assert allow("my_package").load("my_package:build", "model.name") is found  # re-exported
    assert callable(allow("my_package").load("my_package.nets:maker", "model.name"))


@pytest.mark.parametrize("name", ["system", "half"])
def test_what_an_allowed_module_has_imported_from_elsewhere_is_refused(
    package: Path, name: str
) -> None:
    with pytest.raises(ConfigError, match=r"comes from '(posix|functools)', which is not in an"):
        allow("my_package").load(f"my_package:{name}", "model.name")
    assert callable(ANY_CODE.load(f"my_package:{name}", "model.name"))  # the user's own recipe


def test_os_system_is_refused_even_if_os_is_allowed() -> None:
    for allowed in ((), ("os",)):
        with pytest.raises(ConfigError, match=r"model.name = 'os:system': "):
            allow(allowed).load("os:system", "model.name")


@pytest.mark.parametrize(
    "name",
    ["my_package:nets.build", "my_package:", ":build", "my_package..nets:build", "a b:c", "a:b:c"],
)
def test_the_name_after_the_colon_is_one_identifier(package: Path, name: str) -> None:
    for code in (allow("my_package"), ANY_CODE):
        with pytest.raises(ConfigError, match=r"cannot be imported; it must be 'package\.module:f"):
            code.load(name, "model.name")
    assert not package.exists()


@pytest.mark.parametrize("module", ["", ".", "my_package:build", "my-package", "a..b"])
def test_only_a_module_can_be_allowed(module: str) -> None:
    with pytest.raises(ConfigError, match="must be a package or a module, for example my_package"):
        allow([module])


def test_an_installed_package_offers_models_data_and_methods_by_name(
    package: Path, tmp_path: Path
) -> None:
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[fedoptima.models]\nmine = my_package.nets:build\nlost = my_package.nets:missing\n"
        "[fedoptima.datasets]\nmine = my_package.nets:maker\n"
        "[fedoptima.methods]\nmine = fedoptima.methods.fl:fl\n"
        "[other.models]\ntheirs = my_package.nets:build\n"
    )
    assert installed("models", "theirs") is None
    assert not package.exists()
    assert build_model("mine", {"classes": 3}, {}, NO_CODE).out_features == 3
    with pytest.raises(ConfigError, match=r"data.name = 'mine': returned NoneType"):
        load_dataset("mine", NO_CODE)
    assert find_method("mine").__name__ == "fl"
    assert offered("methods") == ["mine"]
    assert "mine" in CliRunner().invoke(app, ["methods"]).stdout
    with pytest.raises(ConfigError, match=r"'lost': the installed package .* cannot be imported"):
        build_model("lost", {"classes": 3}, {})
