"""A dataclass of the core as a table of a recipe, so that its fields are declared once."""

from __future__ import annotations

from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from fedoptima.core.errors import ConfigError


class DataclassTable:
    """``Annotated[SomeDataclass, DataclassTable]``: a table is taken, and its values are strict."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        dataclass_schema: Any = handler.resolve_ref_schema(schema)
        dataclass_schema["strict"] = False  # otherwise only an instance would be taken
        return core_schema.no_info_wrap_validator_function(_checked, schema)


def _checked(value: object, validate: core_schema.ValidatorFunctionWrapHandler) -> object:
    try:
        return validate(value)
    except ConfigError as error:  # the dataclass's own check: pydantic collects value errors only
        raise ValueError(str(error)) from error
