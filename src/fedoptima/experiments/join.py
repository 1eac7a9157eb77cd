"""A device of a run over the network: the public function `join`, and what it works with."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedoptima.analysis.formatting import counted
from fedoptima.config.load import validate
from fedoptima.config.schema import MOST_THREADS, Recipe
from fedoptima.core.errors import ConfigError, FedOptimaError
from fedoptima.core.text import printable, quoted
from fedoptima.core.types import NodeId
from fedoptima.data.dataset import Dataset
from fedoptima.data.layouts import quiet
from fedoptima.data.registry import OWN_FILES, code_of, load_dataset
from fedoptima.data.use import Use
from fedoptima.display.wording import speaks_python
from fedoptima.engine.compute_device import compute_device
from fedoptima.engine.determinism import deterministic
from fedoptima.engine.precision import set_products
from fedoptima.experiments.device_engines import device_engine
from fedoptima.experiments.device_validation import trained_and_held
from fedoptima.experiments.given import Given
from fedoptima.experiments.given_task import task_of
from fedoptima.experiments.server_setup import device_names, expected_devices
from fedoptima.experiments.setup import prepare_run, share_out
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.named_code import ANY_CODE, NO_CODE, AllowedCode, allow
from fedoptima.preprocess.job_costs import Rates
from fedoptima.runtime.address import Address, parse_address
from fedoptima.runtime.device.client import Device, Pace, Workplace
from fedoptima.runtime.device.paced_engine import PacedEngine
from fedoptima.runtime.device.state import StateFile, state_folder
from fedoptima.runtime.security.certificates import check_device_name
from fedoptima.runtime.security.pem import common_name, read_certificates
from fedoptima.runtime.security.tls import DeviceTLS, choose_security
from fedoptima.runtime.timeouts import DEFAULT

LOG = logging.getLogger("fedoptima.device")

T = TypeVar("T")
_MOST_REASON = 1_000  # characters
_STOP_INTERVAL = 0.2  # seconds between two checks whether to stop
_AT_MOST = ("classes", "vocabulary")  # a device may have fewer classes; the rest must match


@dataclass(frozen=True)
class DeviceSetup:
    """A device's settings."""

    name: str
    server: Address
    state: StateFile
    tls: DeviceTLS | None = None
    data: str | None = None  # its own: a registry name or package.module:function; None: a share
    directory: str | None = None  # where data sets are
    compute: str = "cpu"
    threads: int | None = None
    rates: Rates | None = None  # slowed down to these; None: full speed
    pace: Pace = field(default_factory=Pace)
    give_up_after: float | None = None  # seconds without a server
    stay: bool = False  # after a run, wait for the next one
    given: Given = field(default_factory=Given)
    code: AllowedCode = NO_CODE  # what the server's recipe may name


class DeviceFailed(FedOptimaError):
    """This device cannot continue; the server has been notified."""


@speaks_python()
def join(
    server: str,
    *,
    name: str | None = None,
    data: str | None = None,
    directory: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    gflops: float | None = None,
    up_mbps: float | None = None,
    down_mbps: float | None = None,
    ca: str | Path | None = None,
    cert: str | Path | None = None,
    key: str | Path | None = None,
    insecure: bool = False,
    state: str | Path | None = None,
    give_up_after: float | None = None,
    stay: bool = False,
    allow_modules: Sequence[str] = (),
    interrupted: Callable[[], bool] = lambda: False,
) -> str:
    """Take part in a run as a device: train for the server until the run is over.

    The server names the model's code, and that of the data set where `data` is not given. Beyond
    built-in names only code in the packages of `allow_modules` is loaded.

    Args:
        server: Its address, `HOST:PORT`.
        name: One of the recipe's fleet, or any with `data`. It may be left out where `cert` says
            it.
        data: The device's own data: the name of a data set, or `"package.module:function"`. By
            default its share of the recipe's.
        directory: Where data sets are.
        device: Where to compute: `"cpu"`, `"cuda"`.
        threads: torch threads; by default torch's own choice.
        gflops: Slow the device down to this speed.
        up_mbps: Slow its uplink down to this.
        down_mbps: Slow its downlink down to this.
        ca: The certificate of the authority. `ca`, `cert` and `key` are needed unless the server
            is on this machine; `fedoptima certs` makes them.
        cert: The device's certificate.
        key: Its key.
        insecure: Use no certificates, even if the server is on another machine.
        state: A folder for what the device needs to continue after a kill.
        give_up_after: Stop trying to connect after so many seconds; by default never.
        stay: After a run, wait for the next one.
        allow_modules: The packages from which code that the server names may be loaded.
        interrupted: Called a few times a second; if it returns True, `Interrupted` is raised.

    Returns:
        Why the run ended.

    Raises:
        ConfigError: An argument cannot work; the message says which, and how to fix it.
        FedOptimaError: The device cannot continue; the server was notified.
        Interrupted: `interrupted` returned True.

    Example:
        ```python
        reason = fedoptima.join("127.0.0.1:50051", name="phone-1")
        ```
    """
    setup = device_setup(
        server,
        name=name,
        tls_files=(ca, cert, key),
        insecure=insecure,
        speeds=(gflops, up_mbps, down_mbps),
        state=state,
        warn=LOG.warning,
        data=data,
        directory=directory,
        compute=device,
        threads=threads,
        give_up_after=give_up_after,
        stay=stay,
        code=allow(allow_modules),
    )
    return run_device(setup, stopped=interrupted)


def device_setup(
    server: str,
    *,
    name: str | None,
    tls_files: Sequence[str | Path | None],
    insecure: bool,
    speeds: Sequence[float | None],
    state: str | Path | None,
    warn: Callable[[str], None],
    **others: Any,
) -> DeviceSetup:
    """From typed options. ``tls_files``: CA, certificate, key. ``speeds``: GFLOP/s, Mbps up, down.

    ``others``: fields of `DeviceSetup`.
    """
    for option, value in zip(("--gflops", "--up-mbps", "--down-mbps"), speeds, strict=True):
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{option} {value:g}: must be above 0 and finite")
    threads = others.get("threads")
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise ConfigError(f"--threads {threads}: must be from 1 to {MOST_THREADS}")
    _check_here(others.get("compute", "cpu"), others.get("data"))
    address = parse_address(server, option="--server")
    tls = choose_security(address, DeviceTLS.of(*tls_files), insecure=insecure)
    who = name or (common_name(read_certificates(tls.cert)[0]) if tls is not None else None)
    if who is None:
        raise ConfigError("--name is missing: give this device a name, for example --name pi-1")
    check_device_name(who)
    for warning in tls.check(who) if tls is not None else []:
        warn(warning)
    flops, up, down = (
        value and value * unit for value, unit in zip(speeds, (1e9, 1e6 / 8, 1e6 / 8), strict=True)
    )
    folder = Path(state) if state is not None else state_folder()
    return DeviceSetup(
        name=who,
        server=address,
        state=StateFile(folder / f"{who}.json"),
        tls=tls,
        rates=None if flops is None else Rates(flops),
        pace=Pace(up, down),
        **others,
    )


def _check_here(compute: str, data: str | None) -> None:
    """What does not depend on the server is found before there is one."""
    with _named(f"device = {compute!r}", f"--compute {compute}"):
        compute_device(compute)
    if data is not None:
        with _named(f"data.name = {data!r}", f"--data {data}"):
            code_of(data)


@contextmanager
def _named(key: str, option: str) -> Iterator[None]:
    """Here it is an option, and no key of a recipe."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(str(error).replace(key, option, 1)) from error


def run_device(setup: DeviceSetup, *, stopped: Callable[[], bool] = lambda: False) -> str:
    """Work for the server until the run is over; returns why it ended.

    ``stopped`` is asked a few times a second: once it says yes, `Interrupted` is raised.
    """
    with deterministic(setup.threads):
        return asyncio.run(_work(setup, stopped))


async def _work(setup: DeviceSetup, stopped: Callable[[], bool]) -> str:
    said = ""
    while True:
        device = Device(
            setup.name,
            setup.server,
            tls=setup.tls,
            build=partial(build_workplace, setup),
            state=setup.state,
            pace=setup.pace,
            give_up_after=setup.give_up_after,
            stays=setup.stay,
            let_in=bool(said),
        )
        halt = await _unless(stopped, device.run())
        reason = printable(halt.reason, _MOST_REASON)  # perhaps the server's words
        if halt.failed:
            raise DeviceFailed(f"{setup.name} cannot continue: {reason}")
        if not setup.stay:
            return reason
        if reason != said:  # until its server has ended, each attempt gets the same answer
            said = reason
            LOG.info("%s; waiting for the next run", said)
        await _unless(stopped, asyncio.sleep(DEFAULT.between_runs))


async def _unless(stopped: Callable[[], bool], work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            if stopped():
                raise Interrupted("stopped by its operator")
            await asyncio.wait({task}, timeout=_STOP_INTERVAL)
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def build_workplace(setup: DeviceSetup, instructions: str) -> Workplace:
    received = json.loads(instructions)
    recipe = validate(Recipe, received["recipe"], "the server's recipe")
    name, threads = NodeId(setup.name), setup.threads or recipe.threads
    given = replace(
        setup.given, dataset=_own_data(setup, recipe, received["facts"]), code=setup.code
    )
    own, names = given.dataset is not None, device_names(recipe)
    if not own and name not in names:
        raise ConfigError(
            f"the server's recipe does not know {name!r}, so it has no share of "
            f"{quoted(recipe.data.name)} for it; give this device its own data with --data, or "
            f"name it in the recipe's fleet (there are {printable(', '.join(names)) or 'none'})"
        )
    data: dict[str, object] = {"directory": setup.directory}
    if own:
        data["validation"] = "test"  # nothing is held out of it: the server evaluates
    local = {"device": setup.compute, "data": recipe.data.model_copy(update=data)}
    run = prepare_run(recipe.model_copy(update=local), expected_devices(recipe).devices, given)
    set_products(recipe.training.precision)
    run.workload.check_model()
    dataset = run.workload.dataset
    rows = np.arange(len(dataset.train)) if own else share_out(dataset, recipe, names)[name]
    if not own:  # the server measures on the rest; it does not have a device's own data
        rows, _ = trained_and_held(recipe, name, rows)
    engine = device_engine(recipe, run.workload, name, rows)
    rates = setup.rates
    if rates is None:
        return Workplace(engine, len(rows), threads, run.workload.measure_speed)
    batch = min(recipe.training.batch_size, len(rows))
    state = recipe.training.device.state_tensors
    paced = PacedEngine(engine, name, rates=rates, batch=batch, state_tensors=state)
    return Workplace(paced, len(rows), threads, lambda: rates.flops_per_second)


def _own_data(setup: DeviceSetup, recipe: Recipe, facts: dict[str, int]) -> Dataset | None:
    """None: the device works on its share of the server's data set."""
    if setup.given.dataset is not None:
        return _fitted(setup.given.dataset, facts)
    if setup.data is None:
        return None
    # Its own files are like the server's: they have the same columns, sizes and classes.
    options = recipe.data.options if setup.data == recipe.data.name in OWN_FILES else {}
    task = task_of(recipe.task, setup.given.task, setup.given.loss, setup.code)
    use = Use(recipe.data.partition.column, train_only=True, task=task)  # the server has the tests
    with _named(f"data.name = {setup.data!r}", f"--data {setup.data}"):
        own = load_dataset(
            setup.data, ANY_CODE, use, directory=setup.directory, progress=quiet, **options
        )
    return _fitted(own, facts)


def _fitted(dataset: Dataset, facts: dict[str, int]) -> Dataset:
    """A device's own data with the server's classes, of which it may hold only some."""
    mine = {**dataset.facts, "classes": dataset.classes}
    if dataset.train.labels.is_floating_point() and dataset.classes != facts["classes"]:
        raise ConfigError(
            f"--data: {dataset.name} does not fit the server's data: a label has "
            f"{counted(dataset.classes, 'number')} here and {facts['classes']} there"
        )
    for fact, wanted in facts.items():
        have = mine.get(fact)
        fits = have is not None and (have <= wanted if fact in _AT_MOST else have == wanted)
        if not fits:
            from_1 = fact == "classes" and have == wanted + 1
            raise ConfigError(
                f"--data: {dataset.name} does not fit the server's data: {fact} is "
                f"{have if have is not None else 'unknown'} here and {wanted} there"
                + ("; if your labels begin at 1, subtract 1 from them" if from_1 else "")
            )
    return replace(dataset, classes=facts["classes"], facts=facts)
