"""What the wheel holds, and that it works in an environment of its own with each extra."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

from fedoptima.version import __version__
from tests.documents.blocks import ROOT
from tests.packaging.wheel import build_wheel

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Not for users: what the tests, the site and the benchmarks need.
OURS = {"dev", "docs", "peers"}

# What shows that an extra is there: commands of `fedoptima`, in a folder with a dry run in it.
SHOWN_BY = {
    "": [["plan", "recipes/demo_digits.toml"], ["methods"]],
    "data": [["simulate", "recipes/demo_digits.toml", "--set", "stop.epochs=1", "--out", "r"]],
    "deploy": [["certs", "init"], ["certs", "device", "pi-1"], ["device", "--help"]],
    "report": [["report", "run", "--no-advice"]],
    "dashboard": [["report", "run", "--no-advice"]],
    "track": [["simulate", "recipes/demo_digits.toml", "--dry", "--tensorboard", "tb"]],
    "ray": [
        ["sweep", "recipes/demo_digits.toml", "--vary", "fleet.scale=1", "--dry", "--on", "ray"]
    ],
    "testing": [],
}
IMPORTED = {
    "": ["torch", "fedoptima"],
    "data": ["pyarrow", "PIL", "sklearn"],
    "deploy": ["grpc", "google.protobuf", "cryptography", "fedoptima.runtime.server.server_node"],
    "report": ["plotly"],
    "dashboard": ["uvicorn", "fedoptima.dashboard.app"],
    "track": ["prometheus_client", "tensorboard", "mlflow"],
    "ray": ["ray"],
    "testing": ["hypothesis", "fedoptima.testing"],
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(names: set[str]) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src/fedoptima"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    files = {path.removeprefix("src/") for path in tracked if (ROOT / path).is_file()}
    assert files == {name for name in names if ".dist-info/" not in name}


def test_its_metadata_say_what_it_is_and_which_extras_it_has(metadata: Message) -> None:
    assert metadata["Name"] == "fedoptima"
    assert metadata["Version"] == __version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    plain = [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]
    assert sorted(plain) == sorted(PROJECT["dependencies"])


def test_it_installs_the_command(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        assert "fedoptima = fedoptima.cli:main" in archive.read(name).decode()


def test_every_extra_of_a_user_is_tried() -> None:
    assert set(SHOWN_BY) - {""} == set(PROJECT["optional-dependencies"]) - OURS
    assert set(IMPORTED) == set(SHOWN_BY)


@pytest.mark.slow
@pytest.mark.parametrize("extra", SHOWN_BY)
def test_it_works_in_a_clean_environment_with(extra: str, wheel: Path, tmp_path: Path) -> None:
    """Takes a minute and a gigabyte; needs a package index."""
    environment = tmp_path / "environment"
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}

    def run(*words: str | Path) -> str:
        done = subprocess.run(
            list(map(str, words)),
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
        return done.stdout

    run(sys.executable, "-m", "venv", environment)
    python, fedoptima = environment / "bin" / "python", environment / "bin" / "fedoptima"
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wanted)
    assert run(fedoptima, "--version") == f"fedoptima {__version__}\n"
    where = run(python, "-c", "import fedoptima; print(fedoptima.__file__)").strip()
    assert Path(where).is_relative_to(environment)
    run(python, "-c", "; ".join(f"import {module}" for module in IMPORTED[extra]))
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    dry = ["simulate", "recipes/demo_digits.toml", "--dry", "--set", "stop.epochs=1"]
    run(fedoptima, *dry, "--out", "run")
    for command in SHOWN_BY[extra]:
        run(fedoptima, *command)
    run(python, "-m", "pip", "check")
    shutil.rmtree(environment)
