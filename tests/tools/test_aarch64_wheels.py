from __future__ import annotations

import re

import pytest

from tools.aarch64_wheels import RECORD, needed_by_a_device, pinned, without_cuda


def test_the_record_has_every_dependency_of_a_device_at_its_pinned_version() -> None:
    """Another version needs another look: python -m tools.aarch64_wheels --write."""
    recorded = set(re.findall(r"^\| `(\S+)` \| 3", RECORD.read_text(encoding="utf-8"), re.M))
    pins = pinned()
    assert {f"{name}=={pins[name]}" for name in needed_by_a_device()} <= recorded


def test_nothing_was_missing() -> None:
    assert "Missing: nothing." in RECORD.read_text(encoding="utf-8")


def test_a_device_needs_what_its_requirements_require() -> None:
    needed = needed_by_a_device()
    assert {"torch", "grpcio", "sympy", "cffi"} <= set(needed)  # cffi: of cryptography
    assert not {"plotly", "ray", "pytest"} & set(needed)


@pytest.mark.parametrize(
    ("requires", "expected"),
    [
        (["filelock", 'nvidia-cudnn-cu12; platform_machine == "x86_64"'], True),
        (['cuda-toolkit==13.0; platform_system == "Linux"'], False),
        (["nvidia-nccl-cu13"], False),
    ],
)
def test_a_wheel_that_brings_cuda_is_told_by_what_it_requires(
    requires: list[str], expected: bool
) -> None:
    assert without_cuda(requires) is expected
