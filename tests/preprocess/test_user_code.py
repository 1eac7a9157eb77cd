from __future__ import annotations

from fedoptima.core.method import ServerTraining
from fedoptima.methods.registry import METHODS, find_method
from fedoptima.preprocess.split import METHODS_WITHOUT_SPLIT
from fedoptima.preprocess.user_code import line_of


def test_the_methods_that_are_offered_instead_are_those_that_do_not_split() -> None:
    whole = [name for name in METHODS if find_method(name)(2).training is ServerTraining.NONE]
    assert sorted(METHODS_WITHOUT_SPLIT) == sorted(whole)


def test_an_error_without_a_line_of_the_users_has_none() -> None:
    assert line_of(ValueError("nothing was raised")) == ""
