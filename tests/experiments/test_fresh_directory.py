"""A run whose folder was not named gets one of its own in runs/, whatever its recipe is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedoptima.experiments.fresh_directory import fresh_directory


def test_a_folder_that_is_taken_is_numbered(tmp_path: Path) -> None:
    assert fresh_directory(tmp_path, "a") == tmp_path / "a"
    (tmp_path / "a").mkdir()
    (tmp_path / "a-2").mkdir()
    assert fresh_directory(tmp_path, "a") == tmp_path / "a-3"


@pytest.mark.parametrize("name", ["../../evil-fl", "/etc/evil-fl", "a\nb\x1b-fl", "\u00fc" * 300])
def test_no_name_leads_out_of_the_folder_or_is_too_long_for_it(tmp_path: Path, name: str) -> None:
    found = fresh_directory(tmp_path, name)
    assert found.parent == tmp_path
    assert found.name.isprintable()
    found.mkdir()
    assert found.resolve() == found
