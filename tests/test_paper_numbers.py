from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from fedoptima.methods.registry import METHODS
from fedoptima.paper_numbers import NUMBERS, OTHERS, RECIPES, VARIANTS, Measure, PaperNumber, number

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"(Sec\. [236](\.\d)*|Table 2)(, Fig\. \d+(-\d+)?)?")


def test_every_number_has_a_key_of_its_own_by_which_it_is_found() -> None:
    assert Counter(each.key for each in NUMBERS).most_common(1)[0][1] == 1
    assert all(number(each.key) is each for each in NUMBERS)
    with pytest.raises(KeyError, match=r"a_image.time.nobody.*a_image.time.splitfed"):
        number("a_image.time.nobody")


@pytest.mark.parametrize("each", NUMBERS, ids=lambda each: each.key)
def test_every_number_is_of_a_known_method_at_a_place_in_the_paper(each: PaperNumber) -> None:
    assert each.method in {*METHODS, OTHERS}
    gain = each.measure is Measure.ACCURACY_GAIN  # over another form of the same method
    assert each.against in (VARIANTS if gain else {*METHODS, OTHERS, ""})
    assert PLACE.fullmatch(each.place)
    if each.workload is not None:
        assert each.key.startswith(each.workload)
        assert (ROOT / "recipes" / f"{RECIPES[each.workload]}.toml").is_file()
    if each.measure in (Measure.ACCURACY, Measure.RETENTION):
        assert each.value is not None
        assert 0 < each.value < 1
    assert each.value is not None or each.measure is Measure.TIME_RATIO  # the others: "never"


def test_every_method_is_named_in_the_times_of_testbed_a() -> None:
    for workload in ("a_image", "a_text"):
        timed = {
            each.method
            for each in NUMBERS
            if each.workload == workload and each.measure in (Measure.HOURS, Measure.TIME_RATIO)
        }
        paper = {"fedoptima", "fl", "fedasync", "fedbuff", "splitfed", "pipar", "oafl"}
        assert timed == paper
