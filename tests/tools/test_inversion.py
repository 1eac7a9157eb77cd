"""The study of what activations give away: its measure, and a tiny one as a whole."""

from __future__ import annotations

import json
from math import exp
from pathlib import Path

import numpy as np
import pytest
import torch

from tools.inversion import BEGIN, END, Images, main, ssim


def plain_ssim(one: np.ndarray, other: np.ndarray) -> float:
    """Of two grey images, window by window."""
    weights = np.array(
        [[exp(-((i - 5) ** 2 + (j - 5) ** 2) / (2 * 1.5**2)) for j in range(11)] for i in range(11)]
    )
    weights /= weights.sum()
    found = []
    for top in range(one.shape[0] - 10):
        for left in range(one.shape[1] - 10):
            a, b = (image[top : top + 11, left : left + 11] for image in (one, other))
            mean_a, mean_b = (weights * a).sum(), (weights * b).sum()
            var_a = (weights * (a - mean_a) ** 2).sum()
            var_b = (weights * (b - mean_b) ** 2).sum()
            both = (weights * (a - mean_a) * (b - mean_b)).sum()
            found.append(
                (2 * mean_a * mean_b + 1e-4)
                * (2 * both + 9e-4)
                / ((mean_a**2 + mean_b**2 + 1e-4) * (var_a + var_b + 9e-4))
            )
    return float(np.mean(found))


def test_similarity_is_that_of_the_plain_formula() -> None:
    draws = torch.Generator().manual_seed(3)
    one = torch.rand(2, 3, 16, 14, generator=draws, dtype=torch.float64)
    other = (one + 0.3 * torch.randn(one.shape, generator=draws, dtype=torch.float64)).clamp(0, 1)
    for found, a, b in zip(ssim(one, other), one.numpy(), other.numpy(), strict=True):
        expected = np.mean([plain_ssim(x, y) for x, y in zip(a, b, strict=True)])
        assert float(found) == pytest.approx(expected, abs=1e-9)
    assert ssim(one, one).tolist() == pytest.approx([1.0, 1.0])


def test_a_tiny_study_leaves_a_table_a_picture_and_their_origin(tmp_path: Path) -> None:
    draws = torch.Generator().manual_seed(1)
    train, test = (torch.rand(n, 3, 32, 32, generator=draws) for n in (16, 8))
    images = Images(train, torch.arange(16) % 10, test, torch.arange(8))
    out = tmp_path / "out"
    command = ["--out", str(out), "--cuts", "1", "4", "--codecs", "float32", "int8"]
    command += ["--noise", "0", "1", "--epochs", "1", "--steps", "1", "--commit", "abc"]
    main(command, images)
    record = json.loads((out / "inversion.json").read_text())
    assert [(row["cut"], row["noise"], row["codec"]) for row in record["rows"]] == [
        (cut, noise, codec) for cut in (1, 4) for noise in (0, 1) for codec in ("float32", "int8")
    ]
    assert all(-1 <= row["ssim"] <= 1 for row in record["rows"])
    assert all(("accuracy" in row) == (row["codec"] == "float32") for row in record["rows"])

    document = tmp_path / "docs" / "security.md"
    (tmp_path / "docs" / "images").mkdir(parents=True)
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    main(["--out", str(out), "--record", str(document)])
    text = document.read_text()
    assert text.startswith(f"before\n{BEGIN}\n| cut after |")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "commit abc" in text
    assert (tmp_path / "docs/images/inversion.png").read_bytes()[:4] == b"\x89PNG"


def test_a_document_without_marks_is_left_as_it_is(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text("text\n")
    (tmp_path / "images").mkdir()
    (tmp_path / "inversion.png").write_bytes(b"")
    record = {"rows": [], "mean image": 0.0, "command": "", "seed": 1, "date": "", "seconds": 1}
    record |= dict.fromkeys(("fedoptima", "python", "torch", "machine"), "")
    (tmp_path / "inversion.json").write_text(json.dumps(record))
    with pytest.raises(SystemExit, match="has no lines"):
        main(["--out", str(tmp_path), "--record", str(document)])
    assert document.read_text() == "text\n"
