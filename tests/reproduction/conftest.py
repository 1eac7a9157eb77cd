from __future__ import annotations

from tests.cli.conftest import call, start
from tests.reproduction.paper import catalogue, folder

__all__ = ["call", "catalogue", "folder", "start"]
