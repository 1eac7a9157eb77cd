"""``python -m fedoptima`` is the same as ``fedoptima``."""

from __future__ import annotations

from fedoptima.cli import main

if __name__ == "__main__":
    main()
