"""The comparison of revisions: equal for the same code, different where training differs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools.compare_revisions import digests
from tools.revisions import ROOT


@pytest.mark.slow
def test_the_same_code_gives_the_same_digests_and_other_training_gives_others(
    tmp_path: Path,
) -> None:
    changed = tmp_path / "tree"
    for part in ("src", "recipes"):
        shutil.copytree(ROOT / part, changed / part)
    recipe = changed / "recipes" / "demo_digits.toml"
    recipe.write_text(recipe.read_text().replace("learning_rate = 0.05", "learning_rate = 0.04"))
    first, again, other = digests(ROOT), digests(ROOT), digests(changed)
    assert first == again
    assert all(
        mine != theirs for run in first for mine, theirs in zip(first[run], other[run], strict=True)
    )
