"""What holds in every run, whatever the fleet, the method and the misfortunes.

`World` checks the laws that can be read off single events, in all of these runs: the cap, no update
merged twice, every update answered, nobody dropped for breaking the protocol, every policy's own
`check`.
"""

from __future__ import annotations

from collections.abc import Collection
from math import isclose

from fedoptima.core.effects import Run
from fedoptima.core.events import Disconnected, Received
from fedoptima.core.jobs import Merge
from fedoptima.core.messages import ActivationBatch, Join, ModelUpdate
from fedoptima.core.method import ServerTraining
from fedoptima.core.shares import Shares
from fedoptima.core.types import SERVER, PayloadId
from fedoptima.testing.world import Description, World

REASONS = (
    "round done",
    "rounds done",
    "epoch done",
    "epochs done",
    "seconds are over",
    "reached the target",
    "converged",
)


def run_ends_by_its_stop_rule(description: Description) -> None:
    """Progress: as long as somebody is left, whatever happens to the others."""
    outcome = World(description).run()
    assert not outcome.failed, outcome.reason
    assert any(reason in outcome.reason for reason in REASONS), outcome.reason


def run_is_the_same_again(description: Description) -> None:
    first, second = World(description), World(description)
    assert first.run() == second.run()
    assert first.digest == second.digest, "the same run came to something else the second time"


def checkpoints_change_nothing(description: Description, steps: Collection[int]) -> None:
    """Everything is stored and restored after these events."""
    whole, interrupted = World(description), World(description)
    assert whole.run() == interrupted.run(swap_at=steps)
    assert whole.digest == interrupted.digest, "a restored run went on in another way"


def cap_holds_at_every_instant(description: Description) -> None:
    world = World(description)
    world.run()
    assert description.cap is None or world.watch.peak <= description.cap


def update_counts_once(description: Description) -> None:
    """Behind a barrier, where updates may be handed in a second time after a lost connection."""
    world = World(description)
    world.run()
    if not description.method.aggregation().closes_round or description.method.robust != "none":
        return
    shares, trained, epochs = Shares(), dict[PayloadId, int](), 0.0
    for record in world.records:
        if record.node != SERVER:
            continue
        match record.event:
            case Received(device, _, Join(samples=samples)):
                shares.add(device, samples)
            case Disconnected(device):
                shares.remove(device)
            case Received(_, _, ModelUpdate() as update):
                trained[update.data.id] = update.processed
        for effect in record.effects:
            if isinstance(effect, Run) and isinstance(effect.job, Merge):
                parts = effect.job.parts
                epochs += sum(shares.epochs(p.device, trained.pop(p.data.id)) for p in parts)
    counted = world.server.progress.epochs
    assert isclose(counted, epochs, rel_tol=1e-6, abs_tol=1e-9), f"{counted} for {epochs} epochs"


def nobody_starves(description: Description) -> None:
    """In a calm run of devices that are alike each is merged, and what it sends is used."""
    world = World(description)
    world.run()
    merged, served = world.merged(), world.steps_served()
    events = [record.event for record in world.records if record.node == SERVER]
    received = [event for event in events if isinstance(event, Received)]
    sent = {e.sender for e in received if isinstance(e.message, ActivationBatch)}
    for device in world.simulation.devices:
        assert merged[device], f"no update of {device} was ever merged: {merged}"
        assert device not in sent or served[device], f"no batch of {device} was used: {served}"
    if description.method.training is not ServerTraining.NONE:
        assert served.keys() == world.simulation.devices.keys(), f"the server trained on {served}"
