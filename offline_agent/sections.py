"""The base class of configuration sections: a frozen model that forbids unknown keys."""

from __future__ import annotations

from copy import copy
from typing import Annotated, Any, ClassVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MOST = 10**12
"""Upper bound of a number whose key names none: above it no run can end, and libraries overflow."""


OneOrMore = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda it: (it,) if isinstance(it, str) else tuple(it) if isinstance(it, list) else it),
]
"""Texts; a single one stands for itself."""


def key(default: Any, about: str, *, free: bool = False, grows: tuple[str, ...] = (), **limits: Any) -> Any:
    """Declare one key. A number has a lower bound; where no upper one is given it is `MOST`.

    Args:
        default: Its default.
        about: Its meaning, for `--help`.
        free: Results do not depend on it, so it may differ when a run is resumed.
        grows: Commands whose runs may be resumed with more of it: what is done stays as it is.
        limits: pydantic's `ge`, `gt`, `le`, `lt`, `min_length`, `strict`.
    """
    if limits.keys() & {"ge", "gt"} and not limits.keys() & {"le", "lt"}:
        limits["le"] = MOST
    extra: dict[str, Any] = ({"free": True} if free else {}) | ({"grows": list(grows)} if grows else {})
    return Field(default, description=about, json_schema_extra=extra or None, **limits)


def confidence_key(default: float, about: str) -> Any:
    """Declare a key that is a probability to trust in: beyond these limits quantiles and resamples have no meaning."""
    return key(default, about, ge=0.5, le=0.999999)


def other_default(model: type[BaseModel], name: str, default: Any) -> Any:
    """Declare a key of a subclass with another default than in `model`; its meaning and its limits are the same."""
    field = copy(model.model_fields[name])
    field.default = default
    return field


def section(model: type[BaseModel], about: str) -> Any:
    """Declare a section with its defaults."""
    return Field(default_factory=model, description=about)


class Section(BaseModel):
    """A section: unknown keys are faults, values are not coerced, nothing changes after loading."""

    # a section of iterate is a subclass with other defaults; a stage's configuration holds the plain section
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        revalidate_instances="subclass-instances",
    )

    @model_validator(mode="before")
    @classmethod
    def _off_is_a_word(cls, data: Any) -> Any:
        # YAML reads a bare `off` as false
        if not isinstance(data, dict):
            return data
        types = {name: (field.annotation, *get_args(field.annotation)) for name, field in cls.model_fields.items()}
        words = [name for name, options in types.items() if any("off" in get_args(option) for option in options)]
        return data | {name: "off" for name in words if data.get(name) is False}

    @model_validator(mode="after")
    def _no_zero_byte(self) -> Section:
        for name, value in self:
            if isinstance(value, str) and "\0" in value:
                raise ValueError(f"{name}: got {value!r}, but no text may hold a zero byte")
        return self


class Plugged(Section):
    """A section that names something to plug in and carries the arguments of its constructor.

    `env=shop` is short for `env.name=shop`. Keys that are not declared are arguments; whether the constructor takes
    them is checked once it is known (`parameters.keywords`).
    """

    model_config = ConfigDict(extra="allow")
    argument_note: ClassVar[str] = "any argument of its constructor"

    name: str

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data

    def given(self) -> dict[str, Any]:
        """Return the arguments that the constructor must take: extra keys, and declared ones that are not default."""
        fields = type(self).model_fields
        declared = {name: getattr(self, name) for name in fields if name != "name"}
        return {
            **{name: value for name, value in declared.items() if value != fields[name].default},
            **(self.model_extra or {}),
        }

    def defaults(self) -> dict[str, Any]:
        """Return the declared arguments that have their default, None left out: passed on where they are taken."""
        fields = type(self).model_fields
        return {
            name: field.default
            for name, field in fields.items()
            if name != "name" and field.default is not None and getattr(self, name) == field.default
        }
