"""The property tests that fedoptima's own methods pass, for methods of your own.

    from fedoptima.testing import check_method

    def test_my_method() -> None:
        check_method(my_method)

Random small fleets run on the virtual clock with engines whose maths is one number, so that a
hundred runs take seconds: devices are quick and slow, come late, leave, hang, lose the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from fedoptima.core.method import Method

LAWS = (
    "ends",  # every run in which somebody is left ends by its stop rule
    "same again",  # the same run gives the same digest
    "checkpoints",  # storing and restoring everything changes nothing
    "cap",  # never more activations than the flow allows
    "exactly once",  # an update counts once, however often it is handed in
    "hung devices",  # devices that hang never stop the others
    "no starvation",  # in a calm run every device is merged and served
)


def check_method(
    build: Callable[..., Method],
    *,
    examples: int = 25,
    skip: Collection[str] = (),
    **options: object,
) -> None:
    """Check a method in random runs; raises AssertionError with the smallest that breaks a law.

    ``build``: makes the method from the number of devices and the ``options``. ``examples``: runs
    for each of `LAWS` but those in ``skip``, the same ones every time. Needs hypothesis.
    """
    try:
        from fedoptima.testing.checking import check_laws
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        raise ModuleNotFoundError("check_method needs hypothesis: pip install hypothesis") from None
    unknown = [law for law in skip if law not in LAWS]
    if unknown:
        raise ValueError(f"skip: there is no law {unknown[0]!r}; there are {', '.join(LAWS)}")
    wanted = [law for law in LAWS if law not in skip]
    check_laws(lambda devices: build(devices, **options), wanted, examples)
