"""Every mistake is one paragraph on stderr: the file, the key, the value, the way out."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import typer

from fedoptima.cli.errors import explained
from tests.cli.conftest import Call

TOO_MANY = 'fleet.devices=[{name="a", gflops=1, count=2000}]'
BACKWARDS = 'fleet.devices=[{name="a", gflops=1, mbps=-5}]'


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            "training.batchsize=3",
            ["training.batchsize: unknown key", "did you mean 'batch_size'"],
        ),
        ("training.batch_size=many", ["training.batch_size = 'many'", "valid integer"]),
        ("method.activation_cap=0", ["method.activation_cap = 0", "at least 1", "devices, 3"]),
        ("method.activation_cup=4", ["method.activation_cup", "it has activation_cap"]),
        ("method.name=fedoptma", ["method.name = 'fedoptma'", "did you mean 'fedoptima'"]),
        ("split.at=9", ["split", "9", "must be from 1 to 4", "block1, block2"]),
        (BACKWARDS, ["fleet.devices.0.mbps = -5", "greater than 0"]),
        (TOO_MANY, ["empty partition", "2000 devices", "use at most 1442 devices"]),
        ("data.name=cifar11", ["data.name = 'cifar11'", "did you mean 'cifar10'"]),
        ("model.name=vgg6", ["model.name = 'vgg6'", "did you mean 'vgg5'"]),
        ("stop={}", ["stop", "nothing stops this run", "give rounds, epochs"]),
        ("device=gpu", ["device = 'gpu'", "use 'cpu', 'cuda'"]),
    ],
)
def test_a_mistake_names_the_file_the_key_the_value_and_the_way_out(
    call: Call, recipe: Path, change: str, words: list[str]
) -> None:
    answer = call("simulate", recipe, "--set", change, "--out", "here")
    assert answer.code == 2
    assert answer.out == ""
    assert "Traceback" not in answer.err
    for word in (str(recipe), *words):
        assert word in answer.complaint
    assert not Path("here").exists()  # the same --out serves again when the mistake is mended


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("stop.epochs", "--set stop.epochs: write it as key.path=value"),
        ("=3", "--set =3: write it as key.path=value"),
        ("stop.epochs.more=3", "--set stop.epochs.more=3: epochs is a value, not a table"),
    ],
)
def test_a_set_that_cannot_be_read_is_explained(
    call: Call, recipe: Path, change: str, words: str
) -> None:
    answer = call("plan", recipe, "--set", change)
    assert answer.code == 2
    assert words in answer.complaint


def test_a_missing_recipe_brings_up_one_of_a_like_name(call: Call, recipe: Path) -> None:
    answer = call("simulate", recipe.with_name("tinny.toml"))
    assert answer.code == 2
    assert "tinny.toml: no such file; did you mean" in answer.complaint
    assert "tiny.toml?" in answer.complaint


def test_no_recipe_at_all_is_answered_with_an_example(call: Call) -> None:
    answer = call("simulate")
    assert answer.code == 2
    assert "fedoptima simulate recipes/demo_digits.toml" in answer.complaint


def test_missing_data_says_where_it_looked_and_how_to_get_it(
    call: Call, recipe: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDOPTIMA_DATA", str(tmp_path / "nothing"))
    answer = call("simulate", recipe, "--set", "data.name=cifar10")
    assert answer.code == 2
    for word in (str(recipe), "'cifar10' was not found", str(tmp_path / "nothing"), "Get it from"):
        assert word in answer.complaint


def test_a_dry_run_that_only_accuracy_could_end_is_refused(call: Call, recipe: Path) -> None:
    change = "stop={target_accuracy=0.9}"
    answer = call("simulate", recipe, "--dry", "--set", change, "--out", "here")
    assert answer.code == 2
    assert "--set stop.epochs=10" in answer.complaint
    assert not Path("here").exists()


def test_a_loss_that_is_not_a_number_fails_the_run_but_keeps_the_trace(
    call: Call, recipe: Path
) -> None:
    wild = "training.device.learning_rate=1e30"
    answer = call("simulate", recipe, "--out", "here", "--set", wild)
    assert answer.code == 1
    assert answer.complaint.count("here/trace.jsonl.gz") == 1
    # For every reason, and not for every device: some hand in NaN, some values beyond all bounds.
    assert 1 <= answer.complaint.count("lower the learning rate") <= 2
    assert Path("here/trace.jsonl.gz").stat().st_size > 0


def test_a_folder_in_use_is_not_written_into(call: Call, recipe: Path) -> None:
    Path("here").mkdir()
    Path("here/notes.txt").write_text("mine")
    answer = call("simulate", recipe, "--dry", "--out", "here")
    assert answer.code == 2
    assert answer.complaint.endswith("error: here: exists already; choose another folder (--out)")
    assert [path.name for path in Path("here").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("method.reuse=4", "method.reuse = 4: must be a table, of batches, uses"),
        ("method.reuse={use=4}", "method.reuse.use: unknown key; did you mean 'uses'?"),
        ("method.reuse={times=4}", "method.reuse.times: unknown key; known here: batches, uses"),
    ],
)
def test_a_mistake_in_a_table_of_a_methods_options_names_its_keys(
    call: Call, recipe: Path, setting: str, words: str
) -> None:
    answer = call("simulate", recipe, "--dry", "--method", "fedoptima", "--set", setting)
    assert answer.code == 2
    assert words in answer.complaint


def test_resuming_where_no_run_is_says_so(call: Call, tmp_path: Path) -> None:
    answer = call("simulate", "--resume", tmp_path)
    assert answer.code == 2
    assert "no run found here" in answer.complaint


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["simulat"], "Did you mean 'simulate'?"), (["plan", "x", "--mehtod", "fl"], "--method")],
)
def test_a_mistyped_word_brings_up_the_right_one(
    call: Call, arguments: list[str], words: str
) -> None:
    answer = call(*arguments)
    assert answer.code == 2
    assert words in answer.complaint


def test_ctrl_c_while_a_class_is_made_is_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    @explained
    def loads() -> None:
        raise RuntimeError("Error calling __set_name__ on 'Field'") from KeyboardInterrupt()

    with pytest.raises(typer.Exit) as end:
        loads()
    assert end.value.exit_code == 130
    assert capsys.readouterr().err == "stopped\n"


def test_any_other_runtime_error_keeps_its_traceback() -> None:
    @explained
    def breaks() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        breaks()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EROFS, "Read-only", "run/x"), "error: run/x cannot be written: Read-only\n"),
        (
            OSError(errno.ENOSPC, "No space"),
            "error: the output or a file cannot be written: No space\n",
        ),
        (OSError(errno.EACCES, "Permission denied", "x"), "error: x: Permission denied\n"),
    ],
    ids=["read-only", "full", "forbidden"],
)
def test_what_the_file_system_refuses_is_no_bug(
    error: OSError, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @explained
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as end:
        command()
    assert end.value.exit_code == 1
    assert capsys.readouterr().err == words


def test_other_refusals_of_the_system_keep_their_traceback() -> None:
    @explained
    def command() -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    with pytest.raises(OSError, match="Bad file descriptor"):
        command()
