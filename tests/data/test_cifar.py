"""A pickle is a program: the reader of the original batches must not run it."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from fedoptima.core.errors import ConfigError
from fedoptima.data.registry import load_dataset

from . import miniature


class Attack:
    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.victim),)


def python2_batch(raw: bytes, label: int) -> bytes:
    """What Python 2 wrote, opcode by opcode: text as byte strings, numpy under its old name."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<I", len(raw))
        + raw
        + b"tb"
    )
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels]K" + bytes([label]) + b"au."


def test_the_attack_works_against_a_plain_unpickler(tmp_path: Path):
    pickle.loads(pickle.dumps(Attack(tmp_path / "victim")))
    assert (tmp_path / "victim").exists()


def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path):
    miniature.cifar_batches(tmp_path)
    batch = tmp_path / "cifar-10-batches-py/data_batch_2"
    batch.write_bytes(pickle.dumps({b"data": Attack(tmp_path / "victim"), b"labels": [1]}))
    with pytest.raises(ConfigError, match=r"data_batch_2: cannot be read .*mkdir is not allowed"):
        load_dataset("cifar10", directory=tmp_path)
    assert not (tmp_path / "victim").exists()


def test_batches_pickled_by_python_2_are_read(tmp_path: Path):
    miniature.cifar_batches(tmp_path)
    image = miniature.pixels(1, 3, 32, 32, seed=7)
    batch = tmp_path / "cifar-10-batches-py/test_batch"
    batch.write_bytes(python2_batch(image.tobytes(), label=6))
    test = load_dataset("cifar10", directory=tmp_path).test
    assert torch.equal(test.inputs, torch.from_numpy(image))
    assert test.labels.tolist() == [6]


@pytest.mark.parametrize(
    "content",
    [
        {b"data": np.zeros((2, 3072), np.float32), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3000), np.uint8), b"labels": [0, 1]},
        {b"data": [1, 2], b"labels": [0, 1]},
        {b"labels": [0, 1]},
        [1, 2],
    ],
)
def test_a_pickle_of_something_else_is_an_error_with_its_name(tmp_path: Path, content: object):
    miniature.cifar_batches(tmp_path)
    batch = tmp_path / "cifar-10-batches-py/data_batch_5"
    batch.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ConfigError, match="data_batch_5: cannot be read"):
        load_dataset("cifar10", directory=tmp_path)


def test_more_images_than_labels_is_an_error(tmp_path: Path):
    miniature.cifar_batches(tmp_path)
    batch = tmp_path / "cifar-10-batches-py/data_batch_5"
    content = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}
    batch.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ConfigError, match="data_batch_5: 2 images but 1 labels"):
        load_dataset("cifar10", directory=tmp_path)
