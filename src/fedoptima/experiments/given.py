"""What a caller gives besides the recipe: Python objects, and leave to load code it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedoptima.config.schema import DataConfig, Recipe
from fedoptima.core.errors import ConfigError
from fedoptima.core.method import Method
from fedoptima.data.columns import DEVICE
from fedoptima.methods.registry import Builder, name_of
from fedoptima.named_code import ANY_CODE, AllowedCode, import_name

if TYPE_CHECKING:  # they take torch, and a dry run may do without
    from torch import nn

    from fedoptima.data.dataset import Dataset
    from fedoptima.data.rows import Choice
    from fedoptima.tasks.task import Loss, Task

CUSTOM_AUXILIARY = "custom_auxiliary"  # one that was given in Python and cannot be imported
_OPTIONS = ("classes", "label", "features")  # of data that are given in Python


@dataclass(frozen=True)
class Given:
    model: nn.Module | None = None
    dataset: Dataset | None = None
    loss: Loss | None = None
    code: AllowedCode = ANY_CODE  # less where the recipe is not the caller's own
    # Methods and auxiliary networks, by the names recipes use.
    methods: Mapping[str, Builder] = field(default_factory=dict)
    task: Task | None = None
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)  # by recipe key

    def __post_init__(self) -> None:
        if self.model is not None:
            _check_model(self.model)

    @property
    def names(self) -> tuple[str, ...]:
        """The arguments of `resume` that hold these objects."""
        data = ("train", "test") if self.dataset is not None else ()
        model = ("model",) if self.model is not None else ()
        methods = ("method",) if self.methods else ()
        task = ("task",) if self.task is not None else ()
        training = ("training",) if self.functions else ()
        loss = ("loss",) if self.loss is not None else ()
        return (*model, *data, *methods, *task, *training, *loss)

    def check(self, recipe: Recipe, run: Path) -> None:
        """Objects that a run was started with have to be given again when it is resumed."""
        for what, named, there in (
            ("model", recipe.model.name, self.model),
            ("data", recipe.data.name, self.dataset),
            ("task", recipe.task.name, self.task),
        ):
            if named == "custom" and there is None:
                again = "train=..., test=..." if what == "data" else f"{what}=..."
                raise ConfigError(
                    f"{run}: this run's {what} was given in Python; give it again ({again})"
                )


def _check_model(model: object) -> None:
    from torch import nn

    if isinstance(model, nn.Module):
        return
    name = getattr(model, "__name__", type(model).__name__)
    if callable(model):  # a class, or a function that makes one
        raise ConfigError(
            f"model={name}: is {'a class' if isinstance(model, type) else 'a function'}, not a "
            f"model; call it: model={name}(...)"
        )
    raise ConfigError(f"model: {name} is not a model; give an nn.Module, or a model's name")


def named_packages(recipe: Recipe) -> tuple[str, ...]:
    """Those whose code the recipe names ("package.module:function"): to be allowed where a run of
    it, the caller's own, is read back from its folder."""
    auxiliary = str(recipe.method.options.get("auxiliary", ""))
    named = (
        *(recipe.model.name, recipe.data.name, recipe.method.name, auxiliary),
        *_named_in(recipe.task.model_dump()),
        *_named_in(recipe.training.model_dump()),
        *_named_in({name: own.model_dump() for name, own in recipe.methods.items()}),
    )
    return tuple(
        dict.fromkeys(name.partition(":")[0].split(".")[0] for name in named if ":" in name)
    )


def given_method(method: object) -> tuple[Mapping[str, object] | None, dict[str, Builder]]:
    """A method as a caller names or gives it: the recipe's table, and functions by their names.

    The option ``auxiliary`` may be a function, too.
    """
    if method is None:
        return None, {}
    table = dict(method) if isinstance(method, Mapping) else {"name": method}
    functions: dict[str, Builder] = {}
    if isinstance(build := table.get("name"), Method):
        raise ConfigError(
            f"method: a Method ({build.name}) is given; give the function that makes it of the "
            "number of devices: def mine(devices): return ..."
        )
    if callable(build := table.get("name")):
        table["name"] = name = name_of(build)
        functions[name] = build
    if callable(build := table.get("auxiliary")):
        table["auxiliary"] = name = import_name(build) or CUSTOM_AUXILIARY
        functions[name] = build
    return table, functions


def given_methods(methods: object) -> dict[str, Builder]:
    """Those of a script or a notebook among several methods; others are found by their names."""
    several = methods if isinstance(methods, list | tuple) else [methods]
    named = {name_of(method): method for method in several if callable(method)}
    return {name: build for name, build in named.items() if import_name(build) is None}


def _named_in(table: object) -> Iterator[str]:
    if isinstance(table, Mapping):
        for value in table.values():
            yield from _named_in(value)
    elif isinstance(table, str):
        yield table


def given_data(
    train: object, test: object, data: object, task: Callable[[], Task] | None = None
) -> Dataset | None:
    """``task``: what is learned of it; one class for each sample by default."""
    if train is None and test is None and (data is None or isinstance(data, str | Mapping)):
        return None
    from fedoptima.data.custom import as_dataset
    from fedoptima.data.dataset import Dataset
    from fedoptima.tasks.ready import CLASSIFICATION

    learned = CLASSIFICATION if task is None else task()
    if isinstance(data, Dataset):
        return data.for_task(learned).check()
    if train is None:
        if test is not None:
            raise ConfigError("test=... needs train=... as well")
        return None
    if data is not None and not isinstance(data, Mapping):
        raise ConfigError("give either data='name' or train=..., not both")
    options = dict(data or {})
    unknown = [key for key in options if key not in (*_OPTIONS, *DataConfig.model_fields)]
    if unknown:
        raise ConfigError(
            f"data.{unknown[0]}: data given in Python has no such option; it has "
            f"{', '.join(_OPTIONS)}, "
            + ", ".join(field for field in DataConfig.model_fields if field != "name")
        )
    classes = options.get("classes")
    if classes is not None and (not isinstance(classes, int) or classes < 1):
        raise ConfigError(f"data.classes = {classes!r}: must be a whole number of at least 1")
    choice = _choice(options)
    cache = options.get("cache") is True
    return as_dataset(train, test, classes=classes, cache=cache, choice=choice, task=learned)


def custom_table(dataset: Dataset, data: object) -> dict[str, object]:
    """What a recipe says of data that are given in Python."""
    options = data if isinstance(data, Mapping) else {}
    divided = dataset.columns is not None and dataset.columns.names == (DEVICE,)
    own = {"partition": {"kind": "column", "column": DEVICE}} if divided else {}
    return {**own, **options, "name": "custom"}


def _choice(options: Mapping[str, object]) -> Choice:
    """Of columns, where samples are rows."""
    from fedoptima.data.rows import Choice

    label, features = options.get("label"), options.get("features", ())
    names = (features,) if isinstance(features, str) else features
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"data.features = {features!r}: must be names of columns")
    if label is not None and not isinstance(label, str):
        raise ConfigError(f"data.label = {label!r}: must be the name of a column")
    partition = options.get("partition")
    column = partition.get("column") if isinstance(partition, Mapping) else None
    return Choice(tuple(names), label, (column,) if isinstance(column, str) else ())
