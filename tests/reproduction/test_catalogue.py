from __future__ import annotations

from pathlib import Path

import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.reproduction.catalogue import Catalogue, read_catalogue
from fedoptima.reproduction.measures import MEASURES
from fedoptima.reproduction.planned import Choice, runs_of

PAPER = Path(__file__).parents[2] / "recipes" / "paper"


def test_a_figure_is_found_by_its_name_and_a_wrong_name_by_the_nearest(
    catalogue: Catalogue,
) -> None:
    assert list(catalogue.chosen(["traffic", "idle"])) == ["idle", "traffic"]
    assert catalogue.chosen([]) == catalogue.figures
    with pytest.raises(ConfigError, match=r"idel: no figure is called so; did you mean idle\?"):
        catalogue.chosen(["idel"])


def test_without_the_figures_the_way_to_them_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="call this in a checkout of it, or name the folder"):
        read_catalogue(tmp_path)


def test_an_unknown_workload_is_a_mistake_in_the_file(folder: Path) -> None:
    text = (folder / "figures.toml").read_text()
    (folder / "figures.toml").write_text(text.replace('["tiny", "small"]', '["tinny"]'))
    with pytest.raises(ConfigError, match=r"figures.toml: .*no workload 'tinny'"):
        read_catalogue(folder)


def test_the_quick_form_has_one_workload_and_what_it_changes(folder: Path) -> None:
    quick = read_catalogue(folder, quick=True).figures
    assert quick["idle"].workloads == ("tiny",)
    assert quick["idle"].set == {"stop.epochs": 1, "pipar.micro_batches": 2}
    assert quick["cap"].vary == {"method.activation_cap": (2,)}


@pytest.mark.parametrize("quick", [False, True], ids=["whole", "quick"])
@pytest.mark.parametrize("name", list(read_catalogue(PAPER).figures))
def test_every_figure_of_the_paper_has_runs_that_can_be_ordered(name: str, quick: bool) -> None:
    catalogue = read_catalogue(PAPER, quick=quick)
    figure = catalogue.figures[name]
    runs = runs_of(catalogue, figure, Choice(seeds=1))
    assert {run.workload for run in runs} == set(figure.workloads)
    assert len({run.id for run in runs}) == len(runs)
    for panel in figure.panels:
        assert not panel.measure or panel.measure in MEASURES
