from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedoptima.core.errors import ConfigError
from fedoptima.data.dataset import Dataset
from fedoptima.data.loader import Loader
from fedoptima.data.registry import load_dataset
from fedoptima.data.text import Texts, paper_division
from fedoptima.data.vocabulary import PADDING, UNKNOWN

from . import miniature


def spelled(dataset: Dataset, row: torch.Tensor) -> list[str]:
    assert dataset.vocabulary is not None
    names = ["<padding>", "<unknown>", *dataset.vocabulary.words]
    return [names[token] for token in row.tolist() if token]


@pytest.mark.parametrize("write", [miniature.sst2_parquet, miniature.sst2_tsv])
def test_glue_division_is_the_same_from_both_layouts(tmp_path: Path, write: Callable[[Path], None]):
    write(tmp_path)
    dataset = load_dataset("sst2", directory=tmp_path, division="glue", length=6)
    assert dataset.train.labels.tolist() == [1, 0, 1, 0]
    assert dataset.test.labels.tolist() == [1, 0]
    assert dataset.train.inputs.dtype == torch.int32
    # Quotes and the \x85 inside a sentence are text, not syntax of the file.
    assert spelled(dataset, dataset.train.inputs[0]) == ["a", '"', "fine", '"', "film"]
    assert spelled(dataset, dataset.train.inputs[1]) == ["it", "'", "s", "dull", "and", "dull"]
    assert spelled(dataset, dataset.test.inputs[0]) == ["a", "great", "<unknown>"]
    assert dataset.facts["length"] == 6
    assert dataset.prepare(dataset.train.inputs).dtype == torch.int64


def test_words_of_the_test_part_are_not_in_the_vocabulary(tmp_path: Path):
    miniature.sst2_parquet(tmp_path)
    dataset = load_dataset("sst2", directory=tmp_path, division="glue")
    assert dataset.vocabulary is not None
    assert "surprise" not in dataset.vocabulary.words
    assert dataset.facts["vocabulary"] == len(dataset.vocabulary)
    assert int(dataset.train.inputs.max()) == len(dataset.vocabulary) - 1


def test_the_paper_division_takes_only_the_training_file(tmp_path: Path):
    miniature.sst2_tsv(tmp_path)
    (tmp_path / "SST-2/dev.tsv").unlink()
    dataset = load_dataset("sst2", directory=tmp_path)
    assert (len(dataset.train), len(dataset.test)) == (2, 2)  # 4 * 48,000 / 67,349, rounded down
    words = {word for row in dataset.train.inputs for word in spelled(dataset, row)}
    assert words == set(dataset.vocabulary.words if dataset.vocabulary else ())


def test_the_paper_division_of_the_real_number_of_rows_is_48000_and_19349():
    rows = Texts([str(row) for row in range(67_349)], [row % 2 for row in range(67_349)])
    train, test = paper_division(rows)
    assert (len(train.texts), len(test.texts)) == (48_000, 19_349)
    assert sorted(train.texts + test.texts) == sorted(rows.texts)
    assert all(int(text) % 2 == label for text, label in zip(test.texts, test.labels, strict=True))
    assert abs(sum(test.labels) / len(test.labels) - 0.5) < 0.02  # shuffled, not cut in two
    assert paper_division(rows) == (train, test)


@pytest.mark.parametrize("write", [miniature.imdb_parquet, miniature.acl_imdb])
def test_imdb_is_the_same_from_both_layouts(tmp_path: Path, write: Callable[[Path], None]):
    write(tmp_path)
    dataset = load_dataset("imdb", directory=tmp_path)
    assert dataset.train.inputs.shape == (4, 256)
    assert dataset.train.labels.tolist() == [0, 0, 1, 1]
    rows = [spelled(dataset, row) for row in dataset.train.inputs]
    assert rows == [["bad"], ["worst", "ever"], ["good"] * 3, ["nice"]]  # review 9 before 10
    assert spelled(dataset, dataset.test.inputs[0]) == ["bad", "<unknown>"]


def test_a_cached_text_data_set_still_knows_its_words(tmp_path: Path):
    miniature.acl_imdb(tmp_path)
    first, second = (load_dataset("imdb", directory=tmp_path) for _ in range(2))
    assert first.vocabulary == second.vocabulary
    assert torch.equal(first.train.inputs, second.train.inputs)


def test_options_do_not_share_a_cache_entry(tmp_path: Path):
    miniature.acl_imdb(tmp_path)
    lengths = [load_dataset("imdb", directory=tmp_path, length=n).facts["length"] for n in (4, 8)]
    assert lengths == [4, 8]
    assert load_dataset("imdb", directory=tmp_path, vocabulary=4).facts["vocabulary"] == 4


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("division", "half", "'division' = 'half': must be 'paper'"),
        ("length", 0, "'length' = 0: must be at least 1"),
        ("vocabulary", 2, "'vocabulary' = 2: must be at least 3"),
        ("length", "long", "'length' = 'long': must be of type int"),
        ("length", True, "'length' = True: must be of type int"),
        ("lenght", 4, "unknown option 'lenght' = 4 .did you mean 'length'.*vocabulary, length"),
    ],
)
def test_a_wrong_option_says_what_is_right(
    tmp_path: Path, option: str, value: object, message: str
):
    miniature.sst2_parquet(tmp_path)
    with pytest.raises(ConfigError, match=message):
        load_dataset("sst2", directory=tmp_path, **{option: value})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"sentence\tlabel\nfine\t1\nno label here\n", "train.tsv: cannot be read .line 3"),
        (b"sentence\tlabel\nfine\t7\n", "train.tsv: cannot be read .line 2"),
        (b"label\tsentence\n1\tfine\n", "train.tsv: cannot be read .line 1"),
        (b"sentence\tlabel\n\xff\xfe\t1\n", "train.tsv: cannot be read"),
    ],
)
def test_a_damaged_tsv_is_named_with_its_line(tmp_path: Path, content: bytes, message: str):
    miniature.sst2_tsv(tmp_path)
    (tmp_path / "SST-2/train.tsv").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_dataset("sst2", directory=tmp_path)


def test_a_review_folder_without_reviews_is_named(tmp_path: Path):
    miniature.acl_imdb(tmp_path)
    (tmp_path / "aclImdb/test/neg/0_1.txt").unlink()
    with pytest.raises(ConfigError, match="aclImdb/test/neg: holds no reviews"):
        load_dataset("imdb", directory=tmp_path)


def test_words_are_hidden_in_training_only_and_the_files_are_read_once(tmp_path: Path):
    miniature.sst2_parquet(tmp_path)
    plain = load_dataset("sst2", directory=tmp_path, division="glue", length=6)
    hiding = load_dataset("sst2", directory=tmp_path, division="glue", length=6, hidden_words=0.5)
    assert plain.augment is None
    assert torch.equal(hiding.train.inputs, plain.train.inputs)
    loader = Loader(hiding, range(4), batch_size=4, seed=1, node="a")
    batches = torch.cat([loader.batch(step)[0] for step in range(20)])
    assert 0.3 < float((batches == UNKNOWN).sum() / (batches != PADDING).sum()) < 0.7
    unchanged = Loader(hiding, range(4), batch_size=4, seed=1, node="a", augment=False)
    assert UNKNOWN not in unchanged.batch(0)[0]


@pytest.mark.parametrize("share", [-0.1, 1, "half"])
def test_a_share_of_hidden_words_is_a_share(tmp_path: Path, share: object):
    miniature.sst2_parquet(tmp_path)
    with pytest.raises(ConfigError, match=r"'hidden_words' = .*must be"):
        load_dataset("sst2", directory=tmp_path, hidden_words=share)
