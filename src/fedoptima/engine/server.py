"""The Compute Engine of the server (paper Alg. 4, l. 5-20): trains, merges, evaluates."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from fedoptima.core.errors import InvariantBroken
from fedoptima.core.jobs import (
    AddUp,
    CloseCopy,
    CutMerge,
    CutModel,
    FoldedMerge,
    Job,
    Merge,
    OpenCopy,
    Part,
    PlanRun,
    ReusedStep,
    ServerStep,
    cut_of,
)
from fedoptima.core.machine import Outcome
from fedoptima.core.robust import as_text
from fedoptima.core.seeding import derive
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.engine.aggregator import merge
from fedoptima.engine.deferred_faults import Notes
from fedoptima.engine.determinism import seed_step
from fedoptima.engine.flat import FlatTensors
from fedoptima.engine.gpu_upload import arrived
from fedoptima.engine.learner import Learner
from fedoptima.engine.merging import choose, decoded, handed_in, is_finite, of_copies, where
from fedoptima.engine.payloads import (
    LABELS,
    SHARE,
    Tensors,
    copy_of,
    gradients_of,
    pack,
    rebuild_activation,
    unpack,
)
from fedoptima.engine.robustness import Parts
from fedoptima.engine.server_model import ServerModel
from fedoptima.preprocess.split import DeviceSpeed


class ServerEngine(ServerModel):
    """Trains the server side, and merges what devices hand in."""

    def execute(self, job: Job, result: PayloadId) -> Outcome:
        match job:
            case PlanRun(devices):
                speeds = [DeviceSpeed(d.flops_per_second, d.bytes_per_second) for d in devices]
                plan = self._workload.plan(speeds)
                self._build(plan)
                model = self._model(result)
                return Outcome(model, text=plan.to_json(), micro_batches=plan.micro_batches)
            case ServerStep():
                return self._step(job, result)
            case AddUp(part):
                self._add_up(part)
                return Outcome(Payload(result, 0))
            case Merge():
                text = self._merge(job)
                return Outcome(self._model(result), text=text)
            case CutModel(cut=cut):
                return Outcome(pack(result, copy_of(self._cut_model(cut))))
            case OpenCopy(device):
                self._open_copy(device)
                return Outcome(Payload(result, 0))
            case CloseCopy(device):
                self._copies.pop(device, None)
                self._losses.end(device)
                return Outcome(Payload(result, 0))
        raise InvariantBroken(f"a server does not run {type(job).__name__}")

    def _model(self, result: PayloadId) -> Payload:
        """What all devices are sent; where they have cuts of their own, a `CutModel` makes it."""
        return Payload(result, 0) if self._cuts else pack(result, copy_of(self._global))

    # ---- training ----------------------------------------------------------------------------

    def _step(self, job: ServerStep, result: PayloadId) -> Outcome:
        learner = self._learner_of(job)
        on_gpu = self._on_gpu
        tensors = arrived(job.data, self._workload.compute) if on_gpu else unpack(job.data)
        self._seed(job)
        if job.part + 1 == job.parts:
            learner.set_progress(job.progress)
        notes = None if self.deferred is None else self.deferred.notes(job.origin)
        gradients = self._train(learner, tensors, job, notes)
        samples = tensors[LABELS].shape[0]
        if job.return_gradient:
            return Outcome(pack(result, gradients), samples=samples)
        return Outcome(Payload(result, 0), samples=samples)

    def _seed(self, job: ServerStep) -> None:
        if not self._workload.draws_nothing:
            seed_step(self._seed_of(job), self._workload.compute)

    def _seed_of(self, job: ServerStep) -> int:
        again = ("use", job.use) if isinstance(job, ReusedStep) else ()
        return derive(self._workload.planning.seed, SERVER, job.origin, job.seq, job.part, *again)

    def _owner(self, job: ServerStep) -> NodeId:
        """Whose side of the server it trains."""
        return job.origin if self._workload.has_copies else SERVER

    def _learner_of(self, job: ServerStep) -> Learner:
        owner = self._owner(job)
        return self._shared() if owner == SERVER else self._copies[owner]

    def _train(
        self, learner: Learner, tensors: Tensors, job: ServerStep, notes: Notes | None
    ) -> Tensors:
        """One (micro-)batch; returns the gradients that a device may be sent.

        ``notes``: where deferred faults of the job's origin are noted.
        """
        labels, entrance = tensors[LABELS], self._entrances[cut_of(job)]
        if job.part == 0:
            learner.begin()
        if self.deferred is not None and notes is not None:
            learner.leave_out(self.deferred.saw(notes, entrance.expected.comparable(tensors)))
            labels = self._workload.labels.within_range(labels)
        decoded, wanted = entrance.cut.decode(tensors), job.return_gradient
        activation = rebuild_activation(decoded, entrance.example, gradients=wanted)
        output = learner.enter(entrance.network, activation)
        loss = self._workload.loss(cast(Tensor, output), labels)
        loss = self._losses.changed(loss, job.origin, learner)
        weighted = loss * tensors[SHARE].to(loss.dtype) if job.parts > 1 else loss
        torch.autograd.backward(weighted)
        learner.note_loss(loss)
        if job.part + 1 == job.parts:
            self._robustness.limit(job.origin, learner, activation)
            self._note(job.origin, learner.learn_or_undo(), notes)
        if not job.return_gradient:
            return {}
        return entrance.cut.encode_gradients(gradients_of(activation))

    # ---- aggregation -------------------------------------------------------------------------

    def _merge(self, job: Merge) -> str:
        """Merge both sides; returns the parts that were left out, and why, as text."""
        if isinstance(job, FoldedMerge):
            return self._merge_folded(job)
        faulty = self._faults.named([part.device for part in job.parts])
        if isinstance(job, CutMerge):
            if not faulty:
                self._merge_cut(job)
            return as_text({}, faulty)
        sides = [handed_in(job, self._global, self._workload.compute, self._update_codec)]
        if self._workload.has_copies:
            sides.append(of_copies(job, self._shared().tensors(), self._copies))
        refused, parts = choose(job, sides, faulty, self._robustness)
        self._merge_sides(job, parts)
        return as_text(refused, faulty)

    def _add_up(self, part: Part) -> None:
        if faulty := self._faults.named([part.device]):
            self._sum.left_out[part.device] = faulty[0]
            return
        try:
            # A barrier takes updates of the model's version only, so it is what they are based on.
            update = decoded(part, self._global, self._workload.compute, self._update_codec)
            self._sum.add(part.weight, update)
        except Exception as error:  # whatever it is: the merge is the job that fails
            self._sum.error = error

    def _merge_folded(self, job: FoldedMerge) -> str:
        total = self._sum
        try:
            if total.error is not None:
                raise total.error
            faulty = {
                number: total.left_out[part.device]
                for number, part in enumerate(job.parts)
                if part.device in total.left_out
            }
            mean = total.mean(self._global) if total.totals else {}
        finally:
            total.begin_anew()
        if not isinstance(mean, FlatTensors):
            mean = self._as_merged(mean)
        sides: list[Parts] = [[(1.0, mean)] if mean else []]
        if self._workload.has_copies:
            copies = [of_copies(job, self._shared().tensors(), self._copies)]
            sides += choose(job, copies, faulty, self._robustness)[1]
        self._merge_sides(job, sides)
        return as_text({}, faulty)

    def _cut_model(self, cut: int) -> Tensors:
        assert self._cuts is not None
        return self._cuts.model(cut, self.weights())

    def _merge_cut(self, job: CutMerge) -> None:
        """One update of a device with a cut of its own, each part at its own weight."""
        assert self._cuts is not None
        base, codec = self._cut_model(job.cut), self._cuts.codecs[job.cut]
        (update,) = handed_in(job, base, self._workload.compute, codec)
        merged = self._cuts.merged(job, base, update.tensors)
        finite = is_finite(merged, self._masks)
        chosen = where(finite, merged, base)
        shared = self._shared()
        shared.put({name: t for name, t in chosen.items() if name in shared.tensors()})
        self._global = self._as_merged({name: chosen[name] for name in self._global})
        self._cuts.put_auxiliary(job.cut, chosen)
        self._note(job.parts[0].device, (~finite).float())

    def _merge_sides(self, job: Merge, sides: list[Parts]) -> None:
        if sides[0]:
            self._take(job, sides)
        if len(sides) > 1:
            for device in job.refresh:
                if device in self._copies:
                    self._refresh(device)

    def _take(self, job: Merge, sides: list[Parts]) -> None:
        """A result that is not finite is not used: the model stays as it was."""
        if job.server_optimizer is not None:
            merged = self._deltas.apply(
                self._global, sides[0], job.server_optimizer, self._parameters
            )
        else:
            merged = merge(self._global, job.keep, sides[0], self.merge_threads)
        finite = is_finite(merged, self._masks)
        self._global = where(finite, merged, self._global)
        if len(sides) > 1:
            shared = self._shared()
            own = merge(shared.tensors(), job.keep, sides[1])
            finite = finite & is_finite(own, self._masks)
            shared.load(where(finite, own, shared.tensors()))
        if len(job.parts) == 1 or not (finite.is_cuda or self.deferred):
            self._note(job.parts[0].device, (~finite).float())

    def _note(self, device: NodeId, fault: Tensor, notes: Notes | None = None) -> None:
        if self.deferred is None:
            self._faults.note(device, fault)
        else:
            (notes or self.deferred.notes(device)).fault(fault)
