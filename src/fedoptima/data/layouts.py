"""Where a data set may be and in which layout; errors name the path of a missing or damaged file.

A data directory is the one given, else FEDOPTIMA_DATA, else the two usual places. In it a data set
is recognised by the files of one of its layouts: parquet, or what the original download unpacks to.
"""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Generic, Literal, TypeVar

from fedoptima.core.errors import ConfigError

DATA_VARIABLE = "FEDOPTIMA_DATA"

Part = Literal["train", "test"]
ReadingProgress = Callable[[str, int, int], None]  # what is being read, items done, items in all
Options = Mapping[str, int | float | str]
HIDDEN_WORDS = "hidden_words"  # of texts: it changes training, and nothing of what is read
T = TypeVar("T")
Raw = TypeVar("Raw")  # what a reader gives for one part: a Split, or texts with labels


def quiet(what: str, done: int, total: int) -> None:
    """A progress callback that does nothing."""


def of_the_files(options: Mapping[str, T]) -> dict[str, T]:
    """The options that what is read from a set's files depends on."""
    return {key: value for key, value in options.items() if key != HIDDEN_WORDS}


@dataclass(frozen=True)
class Layout(Generic[Raw]):
    folders: tuple[str, ...]  # where below a data directory
    files: tuple[str, ...]  # patterns of all files read; a match of the first tells the layout
    read: Callable[[Path, Part, ReadingProgress], Raw]


@dataclass(frozen=True)
class Found(Generic[Raw]):
    folder: Path
    layout: Layout[Raw]

    def read(self, part: Part, progress: ReadingProgress) -> Raw:
        return self.layout.read(self.folder, part, progress)

    def files(self) -> list[Path]:
        matches = {path for pattern in self.layout.files for path in self.folder.glob(pattern)}
        return sorted(path for path in matches if path.is_file())


@dataclass(frozen=True, kw_only=True)
class Source(Generic[Raw]):
    """A named data set: what it is, where it comes from, how its files are read."""

    name: str
    description: str
    train: int  # samples of the complete set
    test: int
    home: str  # where a user gets it
    layouts: tuple[Layout[Raw], ...]
    defaults: Options = field(default_factory=dict)  # its options with their defaults
    comes_with: str = ""  # the distribution that brings it along, where one does

    def find(self, directory: str | Path | None) -> Found[Raw] | None:
        for folder, layout in self._places(directory):
            if next(folder.glob(layout.files[0]), None) is not None:
                return Found(folder, layout)
        return None

    def locate(self, directory: str | Path | None) -> Found[Raw]:
        found = self.find(directory)
        if found is not None:
            return found
        looked = "".join(
            f"\n  {folder / layout.files[0]}" for folder, layout in self._places(directory)
        )
        raise ConfigError(
            f"data set {self.name!r} was not found. Looked for:{looked}\n"
            f"Get it from {self.home}, unpack it there, or set FEDOPTIMA_DATA or data.directory "
            "to the directory that holds it"
        )

    def where(self, directory: str | Path | None) -> str | None:
        """The place it would be read from, to be shown to users."""
        found = self.find(directory)
        if found is not None:
            return str(found.folder)
        return self.comes_with if self.comes_with and _is_installed(self.comes_with) else None

    def assumption(self, directory: str | Path | None) -> str | None:
        """What a dry run assumes about a set that is not on disk; None: nothing."""
        if self.where(directory) is not None:
            return None
        return (
            f"data set {self.name!r} is not on disk: a dry run needs only its facts, and assumes "
            f"the complete set ({self.train:,} training samples)"
        )

    def resolve(self, options: Mapping[str, object]) -> dict[str, int | float | str]:
        """The defaults updated with the given options, checked by name and type."""
        resolved = dict(self.defaults)
        for key, value in options.items():
            if key not in resolved:
                known = ", ".join(self.defaults) or "none"
                raise ConfigError(
                    f"data set {self.name!r}: unknown option {key!r} = {value!r}"
                    f"{did_you_mean(key, self.defaults)}; its options: {known}"
                )
            usual = self.defaults[key]
            if isinstance(usual, float) and isinstance(value, int):
                value = value if isinstance(value, bool) else float(value)
            if isinstance(value, bool) or not isinstance(value, type(usual)):
                raise ConfigError(
                    f"data set {self.name!r}: option {key!r} = {value!r}: must be of type "
                    f"{type(usual).__name__} (usual: {usual!r})"
                )
            if isinstance(value, int | float | str):
                resolved[key] = value
        return resolved

    def _places(self, directory: str | Path | None) -> Iterator[tuple[Path, Layout[Raw]]]:
        for root in data_directories(directory):
            for layout in self.layouts:
                for folder in layout.folders:
                    yield root / folder, layout


def _is_installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def data_directories(directory: str | Path | None) -> tuple[Path, ...]:
    chosen = directory or os.environ.get(DATA_VARIABLE)
    if chosen:
        return (Path(chosen).expanduser(),)
    return (Path.home() / ".cache" / "fedoptima" / "data", Path("data"))


def did_you_mean(word: str, known: Mapping[str, object]) -> str:
    near = get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Inside, a missing, truncated or invalid file raises a ConfigError."""
    try:
        yield
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: is missing; unpack the data set again") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: cannot be read as UTF-8 ({error}); save it in this encoding, or get it again"
        ) from error
    except (
        OSError,  # includes gzip's and pillow's own
        EOFError,
        LookupError,
        SyntaxError,  # raised by pillow for some broken images
        TypeError,
        ValueError,  # includes pyarrow's own
        zlib.error,
        pickle.UnpicklingError,
    ) as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}); it is damaged or cut short, get it again"
        ) from error


@contextmanager
def extra(package: str) -> Iterator[None]:
    """Inside, importing an optional package that is not installed raises a ConfigError."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"reading this data set needs {package}: pip install 'fedoptima[data]'"
        ) from error
