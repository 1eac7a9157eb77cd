from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedoptima.core.errors import ConfigError
from fedoptima.data.dataset import Dataset
from fedoptima.data.registry import load_dataset
from fedoptima.data.use import Use
from fedoptima.named_code import ANY_CODE
from fedoptima.tasks.ready import regression

ROWS = [
    f"{'ann' if row % 3 else 'bob'},{row},{row * 10 + 5},{'ill' if row % 2 else 'well'}"
    for row in range(20)
]
TABLE = "\n".join(["patient,age,weight,state", *ROWS]) + "\n"


def read(folder: Path, text: str = TABLE, *, use: Use | None = None, **options: object) -> Dataset:
    (folder / "t.csv").write_text(text, encoding="utf-8")
    usual: dict[str, object] = {"file": "t.csv", "label": "state", **options}
    use = use or Use(column="patient")
    return load_dataset("csv", ANY_CODE, use, directory=folder, **usual)


def test_columns_are_features_and_names_are_classes(tmp_path: Path) -> None:
    dataset = read(tmp_path, standardise=False)
    assert dataset.class_names == ("ill", "well")
    assert dataset.facts == {"features": 2, "classes": 2}
    assert (len(dataset.train), len(dataset.test)) == (16, 4)
    inputs = dataset.train.read().tensor
    assert torch.equal(inputs[:, 1], inputs[:, 0] * 10 + 5)
    assert torch.equal(dataset.train.labels, 1 - inputs[:, 0].long() % 2)


def test_every_column_may_divide_the_data(tmp_path: Path) -> None:
    dataset = read(tmp_path, standardise=False)
    assert dataset.columns is not None
    rows = dataset.train.read().tensor[:, 0].long().tolist()
    assert dataset.columns.read("patient") == ["ann" if row % 3 else "bob" for row in rows]
    assert dataset.columns.read("age") == [str(row) for row in rows]


def test_features_have_mean_0_and_deviation_1_over_the_training_rows(tmp_path: Path) -> None:
    text = TABLE.replace("patient,", "always,patient,").replace("\nann", "\n7,ann")
    dataset = read(tmp_path, text.replace("\nbob", "\n7,bob"), features=("age", "always"))
    inputs = dataset.train.read().tensor
    assert torch.allclose(inputs.mean(0), torch.zeros(2), atol=1e-6)
    assert torch.allclose(inputs.std(0, correction=0), torch.tensor([1.0, 0.0]))


def test_a_test_file_is_used_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("state,weight,age\nwell,5,0\ndead,1,2\n")
    dataset = read(tmp_path, test_file="test.csv", standardise=False)
    assert (len(dataset.train), dataset.class_names) == (20, ("dead", "ill", "well"))
    assert dataset.test.tensor.tolist() == [[0, 5], [2, 1]]
    assert dataset.test.labels.tolist() == [2, 0]


def test_labels_that_are_numbers_are_classes_in_their_order(tmp_path: Path) -> None:
    text = "x,label\n" + "".join(f"{row},{(2, 10, 3)[row % 3]}\n" for row in range(9))
    assert read(tmp_path, text, label="label").class_names == ("2", "3", "10")


@pytest.mark.parametrize("price", [1000, 0.25])  # whole numbers are no classes here, either
def test_numbers_are_learned_as_they_are_where_the_task_is_regression(
    tmp_path: Path, price: float
) -> None:
    text = "\n".join(["age,price", *(f"{row},{row * price}" for row in range(20))]) + "\n"
    use = Use(task=regression())
    dataset = read(tmp_path, text, use=use, label="price", standardise=False)
    assert (dataset.classes, dataset.class_names, dataset.task) == (1, (), use.task)
    assert (len(dataset.train), len(dataset.test)) == (16, 4)
    for part in (dataset.train, dataset.test):
        assert part.read().labels.tolist() == (part.read().tensor[:, 0] * price).tolist()
    same = read(tmp_path, text, use=use, label="price", test_file="t.csv")
    assert same.test.read().labels.tolist() == [row * price for row in range(20)]


def test_a_device_has_some_of_the_classes_and_no_test_data(tmp_path: Path) -> None:
    only = Use(column="patient", train_only=True)
    dataset = read(tmp_path, use=only, classes=("dead", "ill", "well"), test_file="not here.csv")
    assert (len(dataset.train), len(dataset.test), dataset.classes) == (20, 0, 3)
    assert dataset.train.labels.unique().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (TABLE, {"label": "status"}, "has no column 'status'; it has patient, age, weight, state"),
        (
            TABLE.replace("4,45", "4,4.5"),
            {"label": "weight", "features": ("age",)},
            "column 'weight' holds 4.5, which is not a class; .*or set task = 'regression'",
        ),
        (TABLE, {"features": ("height",)}, "has no column 'height'"),
        (TABLE, {"features": ("age", "state")}, "'state' is the label; leave it out"),
        (TABLE, {"features": ("patient",)}, "'patient' holds 'bob' in line 2.*data.features"),
        (TABLE.replace(",45,", ",,"), {}, "'weight' has no value in line 6; fill them in"),
        (TABLE.replace(",45,", ",nan,"), {}, "'weight' is NaN or infinite in line 6"),
        (TABLE.replace("4,45,well", "4,45,"), {}, r"no label \('state'\) in line 6;"),
        (TABLE.replace("4,45,well", "4,45"), {}, "4 columns are named, but line 6 has 3; is data"),
        (TABLE, {"delimiter": ";"}, "it has patient,age,weight,state; is data.delimiter another"),
        (TABLE, {"delimiter": ";;"}, "data.delimiter = ';;': .*at most 1 character"),
        (",a,b\n0,1,2\n", {}, r"first column has no name; .* index=False"),
        ("a,a\n1,2\n", {}, "must name each column once, and has a, a; is the header missing"),
        ("", {}, "has no rows below its header"),
        ("age,state\n", {}, "has no rows below its header"),
        (TABLE + '"open', {}, "line 22: unexpected end of data"),
        (TABLE, {"test_share": 0.01}, "test share of 0.01 leaves no sample of the 20"),
        (TABLE, {"test_share": 2.0}, "data.test_share = 2.0: input should be less than 1"),
        (TABLE, {"file": "/tmp/x.csv"}, "set data.directory = '/tmp' and data.file = 'x.csv'"),
        (TABLE, {"file": "y.csv"}, r"data.file = 'y.csv': was not found. Looked for .*y\.csv"),
        (TABLE, {"test_file": "y.csv"}, "data.test_file = 'y.csv': was not found"),
        (TABLE, {"classes": ("ill",)}, "the label 'well' is none of data.classes, ill"),
    ],
)  # fmt: skip
def test_mistakes_say_the_way_out(
    tmp_path: Path, text: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text, **options)


def test_a_table_needs_its_file() -> None:
    with pytest.raises(ConfigError, match=r"data\.file: is missing; The table"):
        load_dataset("csv")


def test_a_file_in_another_encoding_is_to_be_saved_in_ours(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("größe,state\n1,a\n2,b\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin\.csv: cannot be read as UTF-8 .*save it in this"):
        read(tmp_path, file="latin.csv")
