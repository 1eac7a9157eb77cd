from __future__ import annotations

from pathlib import Path

from fedoptima.config.load import load_recipe
from tests.cli.conftest import Call


def test_the_command_writes_the_recipe_and_resumes(call: Call, recipe: Path) -> None:
    words = ("--methods", "fedasync", "--vary", "method.alpha=0.4,0.8", "--epochs", "0.5")
    answer = call("tune", recipe, *words, "--out", "out", "-j", "1")
    assert answer.code == 0
    assert "compare with: fedoptima compare out/tuned.toml" in answer.words
    assert "The search took 2 runs" in answer.words
    [row] = [line.split() for line in answer.out.splitlines() if line.startswith("fedasync")]
    assert row[1].startswith("alpha=0.")
    assert row[-2] == "2"  # runs
    tuned = load_recipe(Path("out/tuned.toml"))
    assert set(tuned.methods["fedasync"].options) == {"alpha"}
    before = Path("out/tuned.toml").read_text().splitlines()
    again = call("tune", "--resume", "out", "-j", "1")
    assert again.code == 0
    after = Path("out/tuned.toml").read_text().splitlines()
    assert [a == b for a, b in zip(before, after, strict=True)].count(False) <= 1  # seconds
    assert "leave out --epochs" in call("tune", "--resume", "out", "--epochs", "1").complaint
