from __future__ import annotations

from pydantic import Field

from fedoptima.config.fleet import Strict
from tools.recipe_keys import sections, tables
from tools.recipe_reference import REFERENCE, forgotten, render, wrong_examples

RENEW = "python -m tools.recipe_reference --write"


def test_every_key_of_a_recipe_says_what_it_means_and_has_an_example() -> None:
    assert not forgotten(sections()), "\n" + "\n".join(forgotten(sections()))


def test_every_example_is_accepted() -> None:
    assert not wrong_examples(), "\n" + "\n".join(wrong_examples())


def test_the_reference_is_current() -> None:
    assert REFERENCE.read_text() == render(), f"docs/recipe.md is not current: run {RENEW}"


class Inner(Strict):
    depth: int | None = None
    width: int = Field(default=1, description="How wide.")


class Outer(Strict):
    inner: Inner = Field(default=Inner(), description="A table.", examples=[{"width": 2}])


def test_a_key_without_a_meaning_is_named_with_what_to_do() -> None:
    (said,) = forgotten(tables(Outer))
    assert f"{__name__}:Inner: the key 'depth' has no meaning and no example" in said
    assert "Field(description=" in said
    assert RENEW in said


class Twice(Strict):
    first: Outer = Field(default=Outer(), description="A table.", examples=[{}])
    second: Outer = Field(default=Outer(), description="Another.", examples=[{}])


def test_a_table_that_occurs_twice_has_the_names_of_both_places() -> None:
    titles = [section.title for section in tables(Twice)]
    assert titles[1:] == ["`[first]`, `[second]`", "`[first.inner]`, `[second.inner]`"]
