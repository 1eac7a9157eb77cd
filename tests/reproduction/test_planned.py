from __future__ import annotations

from pathlib import Path

from fedoptima.reproduction.catalogue import Catalogue, read_catalogue
from fedoptima.reproduction.planned import Choice, Planned, distinct, queue, runs_of
from tests.reproduction.paper import worked_off

ONE = Choice(seeds=1)


def ids(catalogue: Catalogue, name: str, choice: Choice = ONE) -> dict[str, str]:
    runs = runs_of(catalogue, catalogue.figures[name], choice)
    return {f"{run.label} {run.seed}": run.id for run in runs}


def test_two_figures_share_a_run_with_the_same_content(catalogue: Catalogue) -> None:
    idle, traffic = ids(catalogue, "idle"), ids(catalogue, "traffic")
    assert traffic["tiny: fl 1"] == idle["tiny: fl 1"]
    assert idle["tiny: fl 1"] != idle["small: fl 1"]
    planned = queue(catalogue, catalogue.chosen(["idle", "traffic"]), ONE)
    assert len(distinct(list(planned.values()))) == len(idle) == 6


def test_an_option_at_its_default_is_the_same_run_as_without_it(catalogue: Catalogue) -> None:
    named = ids(catalogue, "auxiliary")["tiny: fedoptima, auxiliary=default 1"]
    assert named == ids(catalogue, "accuracy")["tiny: fedoptima 1"]


def test_the_machine_and_the_place_of_the_data_are_no_part_of_a_run(catalogue: Catalogue) -> None:
    elsewhere = Choice(seeds=1, device="cuda", data="/data")
    assert ids(catalogue, "accuracy", elsewhere) == ids(catalogue, "accuracy")
    (run, *_) = runs_of(catalogue, catalogue.figures["accuracy"], elsewhere)
    assert (run.recipe.device, run.recipe.data.directory) == ("cuda", "/data")
    (dry, *_) = runs_of(catalogue, catalogue.figures["idle"], elsewhere)
    assert dry.recipe.device == "cpu"
    assert dry.recipe.data.directory != "/data"  # the timing of the complete set, everywhere


def test_dry_and_trained_are_different_runs_and_so_are_seeds(catalogue: Catalogue) -> None:
    run = runs_of(catalogue, catalogue.figures["accuracy"], ONE)[0]
    assert Planned(run.workload, "dry", run.case, run.recipe).id != run.id
    assert len(set(ids(catalogue, "accuracy", Choice(seeds=3)).values())) == 6


def test_another_fleet_of_the_same_name_makes_another_run(folder: Path) -> None:
    fleet = folder / "fleet.toml"
    text = (folder / "tiny.toml").read_text()
    head, _, groups = text.partition("[[fleet.devices]]")
    head = head.replace("fleet.server.gflops = 3", f'fleet.preset = "{fleet}"')
    (folder / "tiny.toml").write_text(head)
    described = f"server.gflops = 3\n[[fleet.devices]]{groups}".replace("fleet.", "")
    found = []
    for speed in ("0.1", "0.2", "0.1 # the same"):
        fleet.write_text(described.replace("0.1", speed))
        found.append(ids(read_catalogue(folder), "traffic")["tiny: fl 1"])
    assert found[0] == found[2] != found[1]


def test_a_protocol_is_another_budget_for_all_methods(folder: Path) -> None:
    text = (folder / "figures.toml").read_text()
    found = {}
    for protocol in ("epochs", "time", "convergence"):
        changed = text.replace('title = "Accuracy"', f'title = "A"\nprotocol = "{protocol}"')
        (folder / "figures.toml").write_text(changed)
        catalogue = read_catalogue(folder)
        runs = runs_of(catalogue, catalogue.figures["accuracy"], ONE)
        (found[protocol],) = {run.recipe.stop for run in runs}
    assert found["epochs"].epochs == 1
    assert found["time"].epochs is None
    assert found["time"].hours
    assert found["convergence"].patience == 30


def test_a_method_has_what_the_recipe_has_for_it_alone(folder: Path) -> None:
    path = folder / "tiny.toml"
    path.write_text("methods.fl.training.batch_size = 25\n" + path.read_text())
    catalogue = read_catalogue(folder)
    trained = runs_of(catalogue, catalogue.figures["accuracy"], ONE)
    assert {run.case.method: run.recipe.training.batch_size for run in trained} == {
        "fedoptima": 50,
        "fl": 25,
    }
    dry = runs_of(catalogue, catalogue.figures["idle"], ONE)  # a workload's setting is for all
    assert {run.recipe.training.batch_size for run in dry if run.workload == "small"} == {20}


def test_settings_reach_the_methods_that_have_them(catalogue: Catalogue) -> None:
    runs = runs_of(catalogue, catalogue.figures["idle"], ONE)
    options = {run.case.method: run.recipe.method.options for run in runs}
    assert options == {"fedoptima": {}, "fl": {}, "pipar": {"micro_batches": 2}}
    assert len(ids(catalogue, "cap")) == 3  # the cap reaches FedOptima alone


def test_the_queue_does_dry_runs_first_and_then_seed_by_seed(catalogue: Catalogue) -> None:
    planned = queue(catalogue, catalogue.chosen(["accuracy", "cap"]), Choice(seeds=2))
    order = [(run.kind, run.seed) for run in distinct(list(planned.values()))]
    assert (
        order == [("dry", 1)] * 3 + [("dry", 2)] * 3 + [("training", 1)] * 2 + [("training", 2)] * 2
    )


def test_a_dry_run_is_the_same_with_another_rate_and_training_is_not(
    folder: Path, tmp_path: Path
) -> None:
    path, catalogue, found = folder / "tiny.toml", read_catalogue(folder), []
    for own in ("", "methods.fl.training.device = { learning_rate = 0.2, reset_on_load = true }\n"):
        path.write_text(own + path.read_text())
        dry, trained = (ids(catalogue, name)["tiny: fl 1"] for name in ("traffic", "accuracy"))
        record = worked_off(catalogue, ["traffic"], tmp_path / f"out-{len(found)}").get(dry)
        assert record is not None
        found.append((trained, dry, record.figures, record.trace_digest))
    assert found[0][0] != found[1][0]
    assert found[0][1:] == found[1][1:]
