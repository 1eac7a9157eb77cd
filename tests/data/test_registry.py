from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from fedoptima.core.errors import ConfigError
from fedoptima.data.registry import DATASETS, load_dataset

from . import miniature

OWN = """
import torch
from fedoptima.data.custom import as_dataset

def pairs(count=4):
    data = (torch.zeros(count, 2), torch.arange(count))
    return data, data

def dataset():
    return as_dataset(*pairs(3))

def nothing():
    return None

def fails():
    return int("no number")

def leaves():
    raise SystemExit("no camera")

number = 7
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_data.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_data", raising=False)
    return "own_data"


def test_a_missing_data_set_lists_where_it_looked_and_how_to_get_it(tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        load_dataset("cifar10", directory=tmp_path)
    message = str(caught.value)
    assert str(tmp_path / "cifar10" / "train-*.parquet") in message
    assert str(tmp_path / "cifar-10-batches-py" / "data_batch_1") in message
    assert "https://www.cs.toronto.edu/~kriz/cifar.html" in message
    assert "set FEDOPTIMA_DATA or data.directory" in message


def test_the_directory_comes_from_the_argument_then_the_environment_then_the_usual_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    home, work, named = tmp_path / "home", tmp_path / "work", tmp_path / "named"
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(work)
    monkeypatch.setenv("FEDOPTIMA_DATA", str(named))

    def found(directory: Path | None = None) -> str | None:
        return DATASETS["mnist"].where(directory)

    for root in (named, tmp_path / "given"):
        miniature.idx(root / "mnist", compressed=True)
    assert found(tmp_path / "given") == str(tmp_path / "given/mnist")
    assert found() == str(named / "mnist")
    monkeypatch.delenv("FEDOPTIMA_DATA")
    assert found() is None
    miniature.idx(work / "data/mnist", compressed=True)
    assert found() == "data/mnist"
    miniature.idx(home / ".cache/fedoptima/data/mnist", compressed=True)
    assert found() == str(home / ".cache/fedoptima/data/mnist")


def test_a_data_set_tells_whether_it_is_here_and_how_to_get_it(tmp_path: Path):
    miniature.acl_imdb(tmp_path)
    assert DATASETS["imdb"].where(tmp_path) == str(tmp_path / "aclImdb")
    assert DATASETS["digits"].where(tmp_path) == "scikit-learn"
    assert DATASETS["sst2"].where(tmp_path) is None
    assert (DATASETS["cifar10"].kind, DATASETS["cifar10"].train) == ("image", 50_000)
    assert all(source.home and source.description for source in DATASETS.values())


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(ConfigError, match=r"'cifar-1O'.*did you mean 'cifar10'.*digits, cifar10"):
        load_dataset("cifar-1O")


def test_a_hyphen_is_as_good_as_an_underscore(tmp_path: Path):
    miniature.tiny_parquet(tmp_path)
    assert load_dataset("tiny-imagenet", directory=tmp_path).name == "tiny_imagenet"


def test_image_data_sets_have_no_options(tmp_path: Path):
    with pytest.raises(ConfigError, match="'digits': unknown option 'size' = 3; its options: none"):
        load_dataset("digits", directory=tmp_path, size=3)


def test_a_function_of_the_users_may_return_pairs_or_a_dataset(own_module: str):
    pairs = load_dataset(f"{own_module}:pairs", count=6)
    assert (pairs.name, pairs.classes, len(pairs.train)) == ("own_data:pairs", 6, 6)
    dataset = load_dataset(f"{own_module}:dataset")
    assert torch.equal(dataset.train.labels, torch.arange(3))


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("no_such_module:f", {}, "cannot be imported .*no_such_module"),
        ("own_data:missing", {}, "cannot be imported .*missing"),
        (":f", {}, "cannot be imported"),
        ("own_data:number", {}, "is a int, not a function"),
        ("own_data:nothing", {}, "returned NoneType"),
        ("own_data:fails", {}, r"ValueError: .*'no number' \(.*own_data.py, line 16: return int"),
        ("own_data:leaves", {}, r"failed with SystemExit: no camera \(.*own_data.py, line 19"),
        ("own_data:pairs", {"rows": 1}, "does not take these options: .*'rows'"),
    ],
)
def test_a_wrong_import_path_says_what_is_wrong(
    own_module: str, path: str, options: dict[str, object], message: str
):
    with pytest.raises(ConfigError, match=message):
        load_dataset(path, **options)
