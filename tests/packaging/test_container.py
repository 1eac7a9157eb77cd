"""The container file, read: there is no engine here to build it with."""

from __future__ import annotations

import json
import re
import shlex
import tomllib

import typer.main

from fedoptima.cli.app import app
from tests.documents.blocks import ROOT

FILE = ROOT / "deploy" / "Containerfile"


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(name, rest) for line in lines if line for name, _, rest in [line.partition(" ")]]


def project() -> dict[str, object]:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert isinstance(found, dict)
    return found


def test_every_instruction_is_one_that_there_is() -> None:
    known = {"FROM", "ARG", "COPY", "RUN", "USER", "WORKDIR", "VOLUME", "ENV", "EXPOSE"}
    names = [name for name, _ in instructions()]
    assert set(names) <= known | {"ENTRYPOINT", "CMD"}
    assert names[0] == "FROM"


def test_what_is_copied_exists_or_is_what_make_wheel_leaves() -> None:
    for name, rest in instructions():
        if name == "COPY":
            *sources, _ = shlex.split(rest)
            for source in sources:
                assert source == "dist/*.whl" or (ROOT / source).exists()
    assert "--wheel-dir dist" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_it_starts_the_command_that_the_package_installs() -> None:
    found = dict(instructions())
    (entry,) = json.loads(found["ENTRYPOINT"])
    assert entry in project()["scripts"]  # type: ignore[operator]
    assert json.loads(found["CMD"]) == ["--help"]
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert {"server", "device"} <= set(commands)


def test_the_extra_that_it_installs_exists_and_its_python_is_new_enough() -> None:
    everything = FILE.read_text(encoding="utf-8")
    extra = re.search(r"\.whl\)\[(\w+)\]", everything)
    assert extra is not None
    assert extra[1] in project()["optional-dependencies"]  # type: ignore[operator]
    image = re.search(r"^FROM \S+/python:3\.(\d+)", everything, re.MULTILINE)
    assert image is not None
    assert project()["requires-python"] == ">=3.11"
    assert int(image[1]) >= 11


def test_it_does_not_run_as_root() -> None:
    users = [rest for name, rest in instructions() if name == "USER"]
    assert users == ["fedoptima"]
