"""Files of results: where they come from, and a line for every run."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import fedoptima

ROOT = Path(__file__).parents[1]

Record = dict[str, Any]


def origin(module: str, arguments: Sequence[str], device: str, commit: str | None) -> Record:
    """The command, the date, the versions and the machine. ``commit``: where git cannot tell."""
    return {
        "command": shlex.join(["python", "-m", module, *arguments]),
        "date": datetime.now(UTC).date().isoformat(),
        "fedoptima": f"{fedoptima.__version__}, commit {commit or _commit()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": torch.cuda.get_device_name() if device.startswith("cuda") else "CPU",
    }


def save(record: Record, file: Path, news: str) -> None:
    """A line for every key, and one for every item of a list."""
    lines = []
    for key, value in record.items():
        if isinstance(value, list) and value:
            items = ",\n".join(f"    {json.dumps(item)}" for item in value)
            lines.append(f"  {json.dumps(key)}: [\n{items}\n  ]")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    file.parent.mkdir(parents=True, exist_ok=True)
    half = file.with_suffix(".partial")
    half.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    half.replace(file)
    print(f"{file.stem}: {news}", flush=True)


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"
