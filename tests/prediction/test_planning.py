"""A prediction is a short dry run; a long one of the same experiment has to agree with it."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from fedoptima.config.load import validate
from fedoptima.config.schema import Recipe
from fedoptima.core.messages import ProgramSpec
from fedoptima.core.types import NodeId
from fedoptima.data.custom import as_dataset
from fedoptima.experiments.given import Given
from fedoptima.experiments.setup import Experiment, prepare
from fedoptima.experiments.simulated_run import run_experiment
from fedoptima.prediction import planning
from fedoptima.prediction.planning import predict
from tests.experiments.runs import FLEET, TRAINING, Options, data, network

BATCH = 8
SLOW, FAST = NodeId("slow"), NodeId("fast")


def experiment(
    method: Options | None = None, fleet: Options | None = None, samples: int = 240
) -> Experiment:
    table: Options = {
        "model": {"name": "custom"},
        "data": {"name": "custom", "partition": {"kind": "iid"}},
        "fleet": {**FLEET, **(fleet or {})},
        "method": {"name": "fedoptima", **(method or {})},
        "training": TRAINING,
        "split": {"at": 1},
        "stop": {"epochs": 20},
    }
    given = Given(network(), as_dataset(data(samples), data(48, seed=1)))
    return prepare(validate(Recipe, table, "test"), given)


def devices(*groups: Options) -> Options:
    return {"devices": list(groups)}


@pytest.mark.no_cover  # the predictions of the tests below go the same way, without long runs
@pytest.mark.parametrize(
    ("method", "fleet", "bottleneck"),
    [
        ({}, {}, "devices"),
        ({"train_every": 4}, {}, "devices"),
        ({}, {"server": {"gflops": 0.001}}, "server"),
        ({}, devices({"name": "d", "count": 4, "gflops": 0.1, "mbps": 1.0}), "uplink"),
        ({"activation_cap": 1}, {}, "omega"),
        ({"activation_cap": 2}, {}, "omega"),
        ({"auxiliary": "none"}, {}, "uplink"),
        ({"auxiliary": "none"}, devices({"name": "d", "gflops": 0.001, "mbps": 9.0}), "devices"),
        ({"auxiliary": "none"}, {"server": {"gflops": 0.001}}, "server"),
    ],
)
def test_rates_agree_with_a_long_dry_run(method: Options, fleet: Options, bottleneck: str) -> None:
    planned = experiment(method, fleet)
    prediction = predict(planned)
    result = run_experiment(planned, dry=True)
    measured = result.device_samples / result.seconds
    assert prediction.device_samples_per_second == pytest.approx(measured, rel=0.05)
    measured = result.summary.forwarded_samples / result.seconds
    assert prediction.forwarded_samples_per_second == pytest.approx(measured, rel=0.05)
    assert bool(measured) == ("train_every" in method)
    measured = result.server_samples / BATCH / result.seconds
    assert prediction.batches_per_second == pytest.approx(measured, rel=0.05)
    measured = result.useful_samples / result.seconds
    assert prediction.useful_samples_per_second == pytest.approx(measured, rel=0.05)
    assert prediction.up_per_second == pytest.approx(result.bytes_up / result.seconds, rel=0.1)
    assert prediction.down_per_second == pytest.approx(result.bytes_down / result.seconds, rel=0.1)
    assert prediction.bottleneck == bottleneck


def test_parts_in_flight_agree_with_a_long_dry_run() -> None:
    planned = experiment({"auxiliary": "none"})
    program = ProgramSpec("gradient", micro_batches=4)
    planned = replace(planned, method=replace(planned.method, program=program))
    result = run_experiment(planned, dry=True)
    measured = result.device_samples / result.seconds
    assert predict(planned).device_samples_per_second == pytest.approx(measured, rel=0.05)


def test_behind_a_barrier_everybody_goes_at_the_pace_of_the_slowest() -> None:
    planned = experiment({"name": "fl"})
    prediction = predict(planned)
    result = run_experiment(planned, dry=True)
    measured = result.device_samples / result.seconds
    assert prediction.device_samples_per_second == pytest.approx(measured, rel=0.05)
    paces = prediction.devices
    assert paces[SLOW].iteration > paces[FAST].iteration
    assert paces[SLOW].round == pytest.approx(paces[FAST].round)
    assert paces[SLOW].samples_per_second == pytest.approx(paces[FAST].samples_per_second)
    assert prediction.explanation == "every round waits for the slowest device, slow"


def test_without_a_split_there_are_no_candidates_and_no_server_memory() -> None:
    prediction = predict(experiment({"name": "fl"}))
    assert prediction.candidates == {}
    assert prediction.memory is None
    assert prediction.server_capacity is None
    assert prediction.batches_per_second == prediction.offered == 0


def test_an_iteration_is_the_device_side_and_the_auxiliary_step_over_its_speed() -> None:
    prediction = predict(experiment())
    plan = prediction.plan
    assert plan.auxiliary_profile is not None
    parts = [*plan.device_blocks, plan.auxiliary_profile]
    flops = BATCH * sum(part.forward_flops + part.backward_flops for part in parts)
    assert prediction.devices[SLOW].iteration == pytest.approx(flops / 0.001e9)
    assert prediction.devices[FAST].iteration == pytest.approx(flops / 0.006e9)


def test_a_measured_time_replaces_the_estimate() -> None:
    group = {"name": "d", "gflops": 1.0, "seconds": {"forward": 0.5, "auxiliary_step": 0.25}}
    prediction = predict(experiment(fleet=devices(group)))
    assert prediction.devices[NodeId("d")].iteration == pytest.approx(0.75)


def test_fewer_credits_than_devices_let_fewer_batches_through() -> None:
    rates = [predict(experiment({"activation_cap": cap})).batches_per_second for cap in (1, 2, 3)]
    assert rates[0] < rates[1] < rates[2]


def test_what_the_server_could_train_on_does_not_depend_on_what_is_offered() -> None:
    few, many = (predict(experiment({"activation_cap": cap})) for cap in (1, 3))
    assert few.server_capacity == pytest.approx(many.server_capacity, rel=0.05)
    assert few.offered == pytest.approx(many.offered)
    assert few.server_busy < many.server_busy < 1


def test_time_with_reused_batches_is_predicted_apart() -> None:
    plain, reusing = (predict(experiment(options)) for options in ({}, {"reuse": {"uses": 2}}))
    assert plain.server_reused == 0
    assert reusing.server_reused > 0
    assert reusing.server_busy == pytest.approx(plain.server_busy, rel=0.1)
    assert reusing.server_busy + reusing.server_reused <= 1


def test_the_work_is_bounded_and_the_user_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "EVENTS", 100)
    prediction = predict(experiment())
    assert prediction.device_samples_per_second > 0
    (warning,) = prediction.warnings
    assert warning.startswith("a dry run of 100 events is short for this fleet")


def test_server_memory_is_the_papers_formula() -> None:
    prediction = predict(experiment({"activation_cap": 5}))
    memory, plan = prediction.memory, prediction.plan
    assert memory is not None
    assert memory.model == sum(block.parameter_bytes for block in plan.server_blocks)
    assert memory.activation == BATCH * plan.device_blocks[-1].output_bytes
    assert memory.shared == memory.model + 5 * memory.activation
    assert memory.copies == (3 + 1) * memory.model + 3 * memory.activation
    assert memory.kept == 0


def test_memory_of_batches_that_are_kept_to_be_used_again_is_said() -> None:
    memory = predict(experiment({"reuse": {"batches": 7}})).memory
    assert memory is not None
    assert memory.kept == 7 * memory.activation


def test_both_objectives_have_a_table_and_the_recipes_one_decides() -> None:
    prediction = predict(experiment())
    assert set(prediction.candidates) == {"paper", "measured"}
    assert prediction.candidates["paper"] == prediction.plan.table
    for paper, measured in zip(*prediction.candidates.values(), strict=True):
        assert measured.device_flops > paper.device_flops


def test_a_turnaround_near_the_credits_timeout_is_warned_of() -> None:
    turnaround = predict(experiment()).devices[SLOW].turnaround
    quiet = predict(experiment({"credit_timeout": 2.1 * turnaround}))
    assert quiet.warnings == ()
    (warning,) = predict(experiment({"credit_timeout": 1.9 * turnaround})).warnings
    assert warning.startswith("slow answers a turn-on after")
    assert "raise method.credit_timeout" in warning


def test_a_server_with_next_to_nothing_to_do_is_remarked_on_with_ways_out() -> None:
    fast = {"server": {"gflops": 1e6}}
    (warning,) = predict(experiment(fleet=fast)).warnings
    assert re.search(
        r"the server is busy 0\.\d % of its time.*3 devices can send.*split\.at", warning
    )
    whole = predict(experiment({"name": "fl"}, fast))
    assert whole.warnings == ()  # there the server trains nothing anyway


def test_churn_is_said_to_be_left_out() -> None:
    churn = {"every": 5.0, "leave_probability": 0.3, "mbps": [1.0, 3.0]}
    (warning,) = predict(experiment(fleet={"churn": churn})).warnings
    assert "not in this prediction" in warning


def test_a_prediction_can_be_written_as_json() -> None:
    prediction = predict(experiment())
    plain = json.loads(prediction.to_json())
    assert plain["batches_per_second"] == prediction.batches_per_second


@pytest.mark.no_cover  # its dry runs are as long as a prediction's may be
def test_a_device_that_is_not_planned_for_is_named_and_changes_no_plan() -> None:
    usual: list[Options] = [{"name": "usual", "count": 3, "gflops": 0.1, "mbps": 9.0}]
    liar: Options = {"name": "liar", "gflops": 0.1, "mbps": 0.0001}
    alone, joined = experiment(fleet=devices(*usual)), experiment(fleet=devices(*usual, liar))
    assert joined.plan() == alone.plan()
    assert not any("not planned for" in text for text in predict(alone).warnings)
    (warning,) = [text for text in predict(joined).warnings if "not planned for" in text]
    assert "liar: bytes_per_second = 12.5 is not within a factor of 10 of" in warning
