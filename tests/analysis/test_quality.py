from __future__ import annotations

from fedoptima.analysis.curve import Point
from fedoptima.analysis.quality import Quality, quality, quality_of


def point(accuracy: float | None, loss: float | None) -> Point:
    return Point(1.0, 1.0, 1, 0, 0, accuracy, loss)


def test_the_accuracy_says_how_good_a_model_is() -> None:
    found = quality_of([point(0.5, 2.0), point(0.9, 1.0), point(0.8, 0.5)])
    assert found == Quality("accuracy", 0.8, 0.9)
    assert str(found) == "accuracy 80.0 % (best 90.0 %)"
    assert found.short == "80.0 %"


def test_without_accuracy_it_is_the_loss_and_less_is_better() -> None:
    found = quality_of([point(None, 2.0), point(None, 0.25), point(None, 0.5)])
    assert found == Quality("loss", 0.5, 0.25)
    assert str(found) == "loss 0.5 (best 0.25)"
    assert found.short == "loss 0.5"


def test_before_the_first_evaluation_there_is_neither() -> None:
    assert quality_of([]) is None
    assert quality_of([point(None, None)]) is None
    assert quality({"accuracy": [], "loss": []}) is None
