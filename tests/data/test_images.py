from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedoptima.core.errors import ConfigError
from fedoptima.data.registry import load_dataset

from . import miniature


@pytest.mark.parametrize("write", [miniature.cifar_parquet, miniature.cifar_batches])
def test_cifar10_is_the_same_from_both_layouts(tmp_path: Path, write: Callable[[Path], None]):
    write(tmp_path)
    dataset = load_dataset("cifar10", directory=tmp_path)
    images, labels = miniature.cifar()
    expected = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    assert torch.equal(dataset.train.inputs, expected[:10])
    assert torch.equal(dataset.test.inputs, expected[10:])
    assert dataset.train.labels.tolist() + dataset.test.labels.tolist() == labels
    assert dataset.facts == {"channels": 3, "image_size": 32, "classes": 10}


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("fashion_mnist", "fashion-mnist"),
        ("fashion_mnist", "fashion_mnist"),
        ("fashion_mnist", "FashionMNIST/raw"),
    ],
)
def test_idx_files_are_read_compressed_or_not(
    tmp_path: Path, name: str, folder: str, compressed: bool
):
    miniature.idx(tmp_path / folder, compressed=compressed)
    dataset = load_dataset(name, directory=tmp_path)
    images, labels = miniature.grey()
    assert np.array_equal(dataset.train.inputs.squeeze(1).numpy(), images[:4])
    assert np.array_equal(dataset.test.inputs.squeeze(1).numpy(), images[4:])
    assert dataset.train.labels.tolist() + dataset.test.labels.tolist() == labels
    assert dataset.facts == {"channels": 1, "image_size": 28, "classes": 10}


def test_tiny_imagenet_folders_are_labelled_in_the_order_of_sorted_ids(tmp_path: Path):
    miniature.tiny_imagenet_200(tmp_path)
    dataset = load_dataset("tiny_imagenet", directory=tmp_path)
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert dataset.test.labels.tolist() == [2, 0]
    levels = dataset.train.inputs.float().mean((1, 2, 3)).round().int().tolist()
    assert levels[:3] == [40, 42, 50]  # by number: 0, 2, 10
    assert levels[8] == 200  # a grey file, read as colour
    assert dataset.facts == {"channels": 3, "image_size": 64, "classes": 3}


def test_tiny_imagenet_parquet_reads_grey_images_as_colour(tmp_path: Path):
    miniature.tiny_parquet(tmp_path)
    dataset = load_dataset("tiny_imagenet", directory=tmp_path)
    assert dataset.train.inputs.shape == (3, 3, 64, 64)
    grey = torch.from_numpy(miniature.pixels(1, 64, 64, seed=1))
    assert torch.equal(dataset.test.inputs, grey[:, None].expand(1, 3, 64, 64))
    assert dataset.classes == 3


def test_a_tiny_imagenet_image_of_an_unlisted_class_is_an_error(tmp_path: Path):
    miniature.tiny_imagenet_200(tmp_path)
    (tmp_path / "tiny-imagenet-200/wnids.txt").write_text("n01\nn02\n")
    with pytest.raises(ConfigError, match=r"wnids\.txt: does not list class 'n03'"):
        load_dataset("tiny_imagenet", directory=tmp_path)


def test_decoding_reports_its_progress(tmp_path: Path):
    miniature.cifar_parquet(tmp_path)
    heard: list[tuple[str, int, int]] = []
    load_dataset("cifar10", directory=tmp_path, progress=lambda *news: heard.append(news))
    assert heard[0] == ("decoding train-00000-of-00002.parquet", 6, 6)
    assert [done for _, done, _ in heard] == [6, 4, 2]


def test_images_of_two_sizes_name_the_file_and_the_row(tmp_path: Path):
    miniature.cifar_parquet(tmp_path)
    path = tmp_path / "cifar10/test-00000-of-00001.parquet"
    mixed = [miniature.pixels(1, 32, 32, 3)[0], miniature.pixels(1, 8, 8, 3)[0]]
    miniature.image_parquet(path, mixed, [0, 1])
    with pytest.raises(ConfigError, match=rf"{path.name}: image 1 is 8x8, .* 32x32"):
        load_dataset("cifar10", directory=tmp_path)


def test_a_missing_shard_is_not_taken_for_a_smaller_data_set(tmp_path: Path):
    miniature.cifar_parquet(tmp_path)
    (tmp_path / "cifar10/train-00001-of-00002.parquet").unlink()
    with pytest.raises(ConfigError, match="1 of the 2 files train-"):
        load_dataset("cifar10", directory=tmp_path)


def test_a_parquet_file_without_the_expected_columns_says_which_it_has(tmp_path: Path):
    miniature.cifar_parquet(tmp_path)
    path = tmp_path / "cifar10/test-00000-of-00001.parquet"
    miniature.image_parquet(path, miniature.pixels(1, 32, 32, 3), [0], column="picture")
    with pytest.raises(ConfigError, match="has columns picture, label; expected img or image"):
        load_dataset("cifar10", directory=tmp_path)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("name", "write", "damaged"),
    [
        ("cifar10", miniature.cifar_parquet, "cifar10/train-00000-of-00002.parquet"),
        ("cifar10", miniature.cifar_batches, "cifar-10-batches-py/data_batch_3"),
        ("tiny_imagenet", miniature.tiny_parquet, "tiny-imagenet/valid-00000-of-00001.parquet"),
        ("mnist", lambda root: miniature.idx(root / "mnist", compressed=True),
         "mnist/t10k-images-idx3-ubyte.gz"),
        ("mnist", lambda root: miniature.idx(root / "mnist", compressed=False),
         "mnist/train-images-idx3-ubyte"),
    ],
)  # fmt: skip
def test_a_file_cut_short_is_named(
    tmp_path: Path, name: str, write: Callable[[Path], None], damaged: str
):
    write(tmp_path)
    _cut(tmp_path / damaged)
    with pytest.raises(ConfigError, match=rf"{damaged}: cannot be read .* get it again"):
        load_dataset(name, directory=tmp_path)


def test_a_damaged_jpeg_is_named(tmp_path: Path):
    miniature.tiny_imagenet_200(tmp_path)
    (tmp_path / "tiny-imagenet-200/train/n02/images/n02_2.JPEG").write_bytes(b"not an image")
    with pytest.raises(ConfigError, match=r"n02_2\.JPEG: cannot be read"):
        load_dataset("tiny_imagenet", directory=tmp_path)


@pytest.mark.parametrize(
    ("name", "write", "lost"),
    [
        ("cifar10", miniature.cifar_batches, "cifar-10-batches-py/data_batch_4"),
        ("tiny_imagenet", miniature.tiny_imagenet_200, "tiny-imagenet-200/val/images/val_1.JPEG"),
        ("mnist", lambda root: miniature.idx(root / "mnist", compressed=False),
         "mnist/t10k-labels-idx1-ubyte"),
    ],
)  # fmt: skip
def test_a_lost_file_is_named(tmp_path: Path, name: str, write: Callable[[Path], None], lost: str):
    write(tmp_path)
    (tmp_path / lost).unlink()
    with pytest.raises(ConfigError, match=rf"{lost}: is missing"):
        load_dataset(name, directory=tmp_path)


def test_a_label_beyond_the_classes_is_an_error(tmp_path: Path):
    miniature.cifar_parquet(tmp_path)
    path = tmp_path / "cifar10/test-00000-of-00001.parquet"
    miniature.image_parquet(path, miniature.pixels(1, 32, 32, 3), [10])
    with pytest.raises(ConfigError, match="test part: labels run from 10 to 10, but 10 classes"):
        load_dataset("cifar10", directory=tmp_path)


def test_digits_are_split_the_same_way_from_a_file_and_from_scikit_learn(tmp_path: Path):
    from sklearn.datasets import load_digits

    table = np.column_stack(load_digits(return_X_y=True))
    (tmp_path / "digits").mkdir()
    with gzip.open(tmp_path / "digits/digits.csv.gz", "wt") as file:
        np.savetxt(file, table, fmt="%d", delimiter=",")
    from_file = load_dataset("digits", directory=tmp_path)
    installed = load_dataset("digits", directory=tmp_path / "nothing here")
    assert (len(installed.train), len(installed.test)) == (1442, 355)
    assert torch.equal(from_file.train.inputs, installed.train.inputs)
    assert torch.equal(from_file.test.labels, installed.test.labels)


def test_every_class_of_digits_has_a_fifth_in_the_test_part():
    dataset = load_dataset("digits")
    held = torch.bincount(dataset.test.labels)
    assert torch.equal(held, (torch.bincount(dataset.train.labels) + held) // 5)
    prepared = dataset.prepare(dataset.train.inputs)
    assert prepared.dtype == torch.float32
    assert abs(float(prepared.mean())) < 0.01
    assert abs(float(prepared.std()) - 1) < 0.01
