"""The version alone: any module may read it without importing the public names."""

__version__ = "0.2.0.dev0"
