"""Rubrics: named, weighted criteria, read from a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from offline_agent.errors import ConfigError
from offline_agent.store.files import read_text


class Criterion(BaseModel):
    """One criterion.

    Attributes:
        name: Its key in the model's answer and in the evidence.
        about: The question that the model answers with a grade.
        weight: Its share of the score, before division by the sum of all.
        least: Least share of the scale, in [0, 1], without which the whole is no success; None = none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(min_length=1)
    about: str = Field(min_length=1)
    weight: float = Field(1.0, gt=0, allow_inf_nan=False)
    least: float | None = Field(None, ge=0, le=1)


class Rubric(BaseModel):
    """A rubric.

    Attributes:
        instructions: What the judge is told before the criteria.
        scale: The highest grade of a criterion; grades are whole numbers from 0.
        threshold: Least score, in [0, 1], that is a success.
        criteria: At least one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    instructions: str = "You judge the work of an agent that was given a task and tools."
    scale: int = Field(5, ge=1, le=100)
    threshold: float = Field(0.8, gt=0, le=1)
    criteria: tuple[Criterion, ...] = Field(min_length=1)

    @field_validator("criteria")
    @classmethod
    def _named_once(cls, criteria: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
        names = [criterion.name for criterion in criteria]
        if len(set(names)) < len(names):
            raise ValueError("two criteria have the same name")
        return criteria

    def score(self, grades: Mapping[str, float]) -> tuple[float, bool]:
        """Return the weighted score in [0, 1], and whether it is a success."""
        shares = {criterion.name: grades[criterion.name] / self.scale for criterion in self.criteria}
        whole = sum(criterion.weight for criterion in self.criteria)
        score = min(1.0, sum(criterion.weight * shares[criterion.name] for criterion in self.criteria) / whole)
        enough = all(one.least is None or shares[one.name] >= one.least for one in self.criteria)
        return score, enough and score >= self.threshold - 1e-12


def load_rubric(path: str, key: str) -> Rubric:
    """Return the rubric of a YAML file.

    Args:
        path: The file.
        key: The configuration key that names it, for messages.

    Raises:
        ConfigError: It cannot be read, or is no rubric: every fault.
    """
    try:
        data: Any = yaml.safe_load(read_text(path))
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{key}: {path} cannot be read as a YAML file: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{key}: {path} holds a {type(data).__name__}; a rubric has instructions, scale, threshold, "
                          "and criteria with name, about, weight, least (configs/judges/rubric.yaml)")  # fmt: skip
    try:
        return Rubric.model_validate(data)
    except ValidationError as error:
        raise ConfigError(
            [f"{key}: {path}, {'.'.join(map(str, one['loc'])) or 'rubric'}: {one['msg']}" for one in error.errors()]
        ) from error


