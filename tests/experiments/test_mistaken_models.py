"""What is given as a model and cannot be one: the error says so before anything is trained."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

import fedoptima
from fedoptima.core.errors import ConfigError
from fedoptima.engine.misfit import slow_statistics
from fedoptima.models.mobilenet import mobilenet_v3_large

INPUTS = torch.arange(32, dtype=torch.float32).view(8, 4) / 32
LABELS = torch.arange(8) % 2


class Both(nn.Module):
    """Returns what it has found beside its predictions."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.body(x).relu()
        return self.head(found), found


def refusal(model: object, labels: Tensor = LABELS, inputs: Tensor = INPUTS) -> str:
    with pytest.raises(ConfigError) as error:
        fedoptima.simulate(
            model=model,  # type: ignore[arg-type]
            train=(inputs, labels),
            test=(inputs, labels),
            fleet={"server": {"gflops": 1.0}, "devices": [{"name": "d", "gflops": 0.01}]},
            training={"batch_size": 4},
            epochs=1,
        )
    return str(error.value)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Both, "model=Both: is a class, not a model; call it: model=Both(...)"),
        (refusal, "model=refusal: is a function, not a model; call it: model=refusal(...)"),
        (3, "model: int is not a model; give an nn.Module, or a model's name"),
    ],
)
def test_what_is_not_a_model_is_named(model: object, words: str) -> None:
    assert refusal(model) == words


def test_a_fleet_that_is_a_list_is_told_its_form() -> None:
    with pytest.raises(ConfigError, match=r"fleet is a list; .* fleet=\{'server': .*'devices': \["):
        fedoptima.plan(
            model=small(),
            train=(INPUTS, LABELS),
            test=(INPUTS, LABELS),
            fleet=[{"name": "d", "gflops": 1.0}],  # type: ignore[arg-type]
        )


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"training": [("batch_size", 4)]}, r"training is a list; give training=\{'batch_size'"),
        ({"stop": 3}, r"stop is a int; give stop=\{'epochs': 10\}"),
        ({"method": Both}, "is a class; give a function that returns a fedoptima.methods.Method"),
    ],
)
def test_parts_of_another_kind_are_told_their_form(part: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fedoptima.simulate("recipes/demo_digits.toml", dry=True, **part)  # type: ignore[arg-type]


def test_a_model_that_returns_more_than_its_predictions_is_refused_without_a_time() -> None:
    assert refusal(Both()).endswith("(2, 2), which is (batch, 2), and nothing beside it")


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def test_labels_that_begin_at_1_are_recognised() -> None:
    assert refusal(small(), LABELS + 1).endswith("if your labels begin at 1, subtract 1 from them")


def test_a_label_out_of_range_is_one_reason_for_too_many_classes() -> None:
    text = refusal(small(), torch.tensor([*LABELS[:-1].tolist(), 9]))
    assert text.endswith("(batch, 10); if there are not so many, look for wrong labels from 2 to 9")


def test_a_lazy_module_is_named_before_its_weights_are_missed() -> None:
    text = refusal(nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(2)))
    assert text.startswith("model: 1 (LazyLinear) has no weights before its first call; call the")


def test_a_model_in_another_number_format_is_told_the_way_out() -> None:
    assert refusal(small().double()).endswith(
        "the model must be in float32: convert it with .float()"
    )


@pytest.mark.parametrize("inputs", [INPUTS.to(torch.uint8), (32 * INPUTS).long() - 5])
def test_whole_numbers_for_a_model_that_takes_others_are_told_the_way_out(inputs: Tensor) -> None:
    assert refusal(small(), inputs=inputs).endswith(
        "no token ids, give them as such: inputs.float()"
    )


def test_inputs_of_half_precision_are_told_the_way_out() -> None:
    assert refusal(small(), inputs=INPUTS.half()).endswith("as float32: inputs.float()")


def test_one_output_for_two_classes_is_told_which_task_takes_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    text = refusal(model)
    assert "begin at 1" not in text
    assert text.endswith("task='multi-label' and labels of shape (samples, 1): labels.unsqueeze(1)")


def test_a_hook_on_a_gradient_is_not_lost_in_silence() -> None:
    model = small()
    model[0].weight.register_hook(lambda gradient: 0 * gradient)
    assert refusal(model).startswith("model: 0.weight has a hook on its gradient")


def test_a_scripted_part_is_not_left_untrained_in_silence() -> None:
    model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Linear(4, 4)), nn.Linear(4, 2))
    assert refusal(model).startswith("model: 1 was compiled by torch.jit, and a device's copy of")


class Holds(nn.Module):
    """A constant, or something else, beside its weights."""

    def __init__(self, held: object) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        if isinstance(held, nn.Parameter):
            self.held = held
        elif isinstance(held, Tensor):
            self.register_buffer("held", held)
        self._state = held

    def get_extra_state(self) -> object:
        return self._state if isinstance(self._state, dict) else torch.ones(1)

    def set_extra_state(self, state: object) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(x).relu())
        return found


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (nn.Parameter(torch.ones(2, dtype=torch.complex64)), "held is complex, and only real"),
        (torch.ones(2, dtype=torch.complex64), "held is complex, and only real numbers are sent"),
        (torch.eye(2).to_sparse(), "held (torch.float32, torch.sparse_coo) is of a kind that"),
        (torch.ones(2, dtype=torch.uint16), "held (torch.uint16, torch.strided) is of a kind"),
        ({"step": 1}, "_extra_state, which it saves, is no tensor but dict; only tensors are"),
    ],
    ids=["complex weight", "complex buffer", "sparse", "uint16", "a dict"],
)
def test_what_cannot_be_merged_is_named(held: object, words: str) -> None:
    assert refusal(Holds(held)).startswith(f"model: {words}")


class Empty(nn.Sequential):
    """As a container is that is filled by its forward alone: Python takes it for false."""

    def __len__(self) -> int:
        return 0


def test_a_model_that_python_takes_for_false_is_a_model() -> None:
    assert "unknown model" not in refusal(Empty())


class Remembers(nn.Module):
    """Keeps what it has computed, as for a look at it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.last: object = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.body(x).relu()
        return self.head(self.last)


@pytest.mark.parametrize("last", ["computed", threading.Lock()], ids=["tensor", "lock"])
def test_a_model_that_cannot_be_copied_is_not_taken_for_one_of_other_data(last: object) -> None:
    model = Remembers()
    model.last = model(INPUTS) if last == "computed" else last
    text = refusal(model)
    assert text.startswith("model: Remembers cannot be copied, and each device trains a copy (")
    assert "the data" not in text


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + self.weight * b


def test_one_input_for_a_model_that_takes_two_is_told_how_to_give_two() -> None:
    assert refusal(Pair()).endswith("in place of one x: ((a, b), labels)")


def normalised(momentum: float | None = 0.1, *, tracked: bool = True) -> nn.Sequential:
    norm = nn.BatchNorm1d(4, momentum=momentum, track_running_stats=tracked)
    return nn.Sequential(nn.Linear(4, 4), norm, nn.ReLU(), nn.Linear(4, 2))


def test_statistics_that_cannot_keep_up_with_the_weights_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fedoptima.simulate(
        model=normalised(0.01),
        train=(INPUTS, LABELS),
        test=(INPUTS, LABELS),
        fleet={"server": {"gflops": 1.0}, "devices": [{"name": "d", "gflops": 0.01}]},
        training={"batch_size": 4},
        epochs=1,
    )
    assert "momentum = 0.01 (1) moves its running statistics 2% of the way" in caplog.text
    assert "a round of 2 steps" in caplog.text
    assert "set their momentum to 0.1" in caplog.text


@pytest.mark.parametrize(("size", "warned_of"), [(8, False), (9, True)])
def test_batches_that_no_device_can_fill_are_warned_of(
    caplog: pytest.LogCaptureFixture, size: int, warned_of: bool
) -> None:
    fedoptima.simulate(
        model=nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)),
        train=(INPUTS, LABELS),
        test=(INPUTS, LABELS),
        fleet={"server": {"gflops": 1.0}, "devices": [{"name": "d", "gflops": 0.01}]},
        training={"batch_size": size},
        epochs=1,
    )
    said = "training.batch_size = 9 is more than devices hold (8 samples on average)"
    assert (said in caplog.text) is warned_of


@pytest.mark.parametrize(
    ("model", "steps"),
    [
        (normalised(), 2),  # as torch makes it
        (normalised(0.01), 100),  # a long round
        (normalised(None), 2),  # the mean of all batches
        (normalised(0.01, tracked=False), 2),  # those of the batch, also in an evaluation
        (mobilenet_v3_large(classes=2), 20),
    ],
)
def test_other_statistics_are_not_warned_of(model: nn.Module, steps: int) -> None:
    assert slow_statistics(model, steps) == ""


def test_a_warning_of_statistics_counts_the_layers() -> None:
    several = nn.Sequential(normalised(0.05), normalised(0.01), normalised(0.02))
    assert "momentum = 0.01 (1.1 and 2 more)" in slow_statistics(several, 5)


class Tied(nn.Module):
    """Its last layer is its first one, turned round, as in many language models."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(4, 2, bias=False), nn.Linear(4, 2, bias=False)
        self.out.weight = self.into.weight
        self.middle = nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(self.middle(self.into(x)))
        return found


def test_tied_weights_that_leave_no_place_to_cut_are_named() -> None:
    text = refusal(Tied())
    assert "cannot be split: 'into.weight' and 'out.weight' are one tensor" in text
    assert "name a module after which to cut" not in text
