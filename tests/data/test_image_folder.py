from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedoptima.core.errors import ConfigError
from fedoptima.data.dataset import Dataset
from fedoptima.data.pictures import eight_bits
from fedoptima.data.registry import load_dataset
from fedoptima.data.use import Use
from fedoptima.named_code import ANY_CODE
from fedoptima.tasks.ready import regression


def save(path: Path, *, width: int = 6, height: int = 6, shade: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((height, width, 3), shade, np.uint8)).save(path)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Ten cats, dark; five dogs, bright."""
    for number in range(10):
        save(tmp_path / "pets" / "cat" / f"{number}.png", shade=10 + number)
    for number in range(5):
        save(tmp_path / "pets" / "dog" / f"{number}.JPG", shade=200)
    return tmp_path / "pets"


def read(folder: Path, *, train_only: bool = False, **options: object) -> Dataset:
    use = Use(train_only=train_only)
    return load_dataset("image_folder", ANY_CODE, use, directory=folder, **options)


def test_folders_are_classes_and_a_share_of_each_is_test_data(pets: Path) -> None:
    dataset = read(pets)
    assert dataset.class_names == ("cat", "dog")
    assert dataset.facts == {"channels": 3, "image_size": 6, "classes": 2}
    assert dataset.train.labels.bincount().tolist() == [8, 4]
    assert dataset.test.labels.bincount().tolist() == [2, 1]
    prepared = dataset.prepare(dataset.train.read().tensor)
    assert prepared[dataset.train.labels == 1].min() > 0.5  # bright
    assert prepared[dataset.train.labels == 0].max() < -0.5
    shades = [
        sorted(part.read().tensor[:, 0, 0, 0].tolist()) for part in (dataset.train, dataset.test)
    ]
    assert not set(shades[0]) & set(shades[1]) - set(range(190, 210))


def test_a_test_folder_is_used_where_there_is_one(pets: Path, tmp_path: Path) -> None:
    root = tmp_path / "parted"
    root.mkdir()
    pets.rename(root / "train")
    save(root / "val" / "dog" / "x.png")
    dataset = read(root)
    assert (len(dataset.train), len(dataset.test)) == (15, 1)
    assert dataset.test.labels.tolist() == [1]
    assert len(read(root, train_only=True).test) == 0


def test_images_are_resized_and_made_grey(pets: Path) -> None:
    save(pets / "cat" / "wide.png", width=20, height=10)
    dataset = read(pets, size=4, channels=1)
    assert dataset.facts == {"channels": 1, "image_size": 4, "classes": 2}


def test_a_photograph_is_turned_as_its_camera_was_held(pets: Path) -> None:
    pixels = np.zeros((8, 4, 3), np.uint8)
    pixels[:4] = 255  # bright above
    exif = Image.Exif()
    exif[0x0112] = 3  # turned by 180 degrees
    Image.fromarray(pixels).save(pets / "cat" / "turned.png", exif=exif)
    images = read(pets, size=4, train_only=True).train.read().tensor
    turned = images[images.amax((1, 2, 3)) == 255]
    assert turned[0, :, 0].max() == 0
    assert turned[0, :, -1].min() == 255


@pytest.mark.parametrize("size", [None, 6])
def test_an_image_of_16_bits_is_not_white(pets: Path, size: int | None) -> None:
    deep = np.full((6, 6), 20_000, np.uint16)
    deep[0, 0] = 65_535
    for number in range(10):
        Image.fromarray(deep).save(pets / "cat" / f"{number}.png")
    dataset = read(pets, channels=1, size=size)
    cats = dataset.train.read().tensor[dataset.train.labels == 0]
    assert cats[:, 0, 5, 5].unique().tolist() == [20_000 // 257]
    assert cats[:, 0, 0, 0].unique().tolist() == [255]


def test_an_image_of_32_bits_that_uses_8_is_taken_as_it_is() -> None:
    picture = Image.fromarray(np.array([[0, 128, 255]], np.int32))
    assert np.asarray(eight_bits(picture, "x.tiff")).tolist() == [[0, 128, 255]]


def test_an_image_of_fractions_is_refused(pets: Path) -> None:
    Image.fromarray(np.full((6, 6), 0.5, np.float32)).save(pets / "cat" / "0.tiff")
    with pytest.raises(ConfigError, match=r"0.tiff: pixels are from 0.5 .* 8 or 16 bits"):
        read(pets)


def test_folders_inside_a_class_are_a_column(tmp_path: Path) -> None:
    for person in ("ann", "bob"):
        for label in ("a", "b"):
            for number in range(3):
                save(tmp_path / label / person / f"{number}.png")
    dataset = read(tmp_path, test_share=0.3)
    assert dataset.columns is not None
    assert sorted(set(map(str, dataset.columns.read("folder")))) == ["ann", "bob"]
    assert len(dataset.columns.read("folder")) == len(dataset.train)


def test_classes_that_are_named_keep_their_numbers(pets: Path) -> None:
    dataset = read(pets, classes=("bird", "cat", "dog"), train_only=True)
    assert dataset.classes == 3
    assert dataset.train.labels.unique().tolist() == [1, 2]
    with pytest.raises(ConfigError, match=r"label 'cat' is none of data\.classes, dog"):
        read(pets, classes=("dog",))


def test_the_same_images_are_decoded_once_and_divided_alike(pets: Path, cache: Path) -> None:
    first, second = read(pets, size=3), read(pets, size=3)
    assert torch.equal(first.train.read().tensor, second.train.read().tensor)
    assert len(list(cache.rglob("image_folder-*"))) == 1
    read(pets, size=4)
    assert len(list(cache.rglob("image_folder-*"))) == 2


def test_folders_are_not_taken_for_numbers_to_learn(pets: Path) -> None:
    use = Use(task=regression())
    with pytest.raises(ConfigError, match=r"folders are classes.*in a function of your own"):
        load_dataset("image_folder", ANY_CODE, use, directory=pets)


def test_mistakes_say_the_way_out(pets: Path, tmp_path: Path) -> None:
    def message(directory: Path | None, /, **options: object) -> str:
        with pytest.raises(ConfigError) as caught:
            load_dataset("image_folder", directory=directory, **options)
        return str(caught.value)

    assert "data.directory: is missing" in message(None)
    assert "was not found" in message(tmp_path / "nowhere")
    assert "data.folder = '../x': must be inside" in message(pets, folder="../x")
    assert "unknown option (did you mean 'size'?)" in message(pets, sise=3)
    assert "data.size = '64': input should be a valid integer" in message(pets, size="64")
    assert "data.channels = 2" in message(pets, channels=2)
    (tmp_path / "empty").mkdir()
    assert "has no folders of images" in message(tmp_path / "empty")
    save(pets / "cat" / "wide.png", width=20)
    assert "all must have one size; set data.size" in message(pets)
    (pets / "cat" / "broken.png").write_bytes(b"no image")
    assert "broken.png: cannot be read" in message(pets, size=3)
    (pets / "fish").mkdir()
    assert "fish: holds no images" in message(pets)
    save(tmp_path / "wide" / "a" / "1.png", width=20)
    assert "images are 20x6, not squares; set data.size" in message(tmp_path / "wide")
    save(tmp_path / "one" / "a" / "1.png")
    assert "leaves no sample of the 1 for the test" in message(tmp_path / "one")
