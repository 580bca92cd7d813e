"""The keys of `calibrate`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import field_validator

from offline_agent.config.build_prefs import JudgeSection, RunConfig
from offline_agent.sections import Plugged, confidence_key, key, section


class CompareSection(Plugged):
    """The comparator of attempts at one task."""

    argument_note: ClassVar[str] = "any argument of the comparator, e.g. compare.url=URL with compare=llm"
    name: str = key(
        "none", "none; llm = a model behind an OpenAI-compatible URL, asked with compare.rubric=FILE; or "
        "module:callable of your own, called as compare(first, second) with two trajectories, which returns in [0, 1] "
        "how much the first is the better one, or null"
    )


class CalibrateConfig(RunConfig):
    """Keys of `calibrate`."""

    about: ClassVar[str] = (
        "Hold a judge, or a comparator, against the verifier whose verdicts a run keeps: agreement, kappa, "
        "false positives, by length and by position."
    )
    main_keys: ClassVar[tuple[str, ...]] = (
        "source", "judge", "compare", "n", "length", "bins", "confidence", "workers", "run_dir",
        "seed", "tracking.uri",
    )  # fmt: skip
    examples: ClassVar[tuple[tuple[str, str], ...]] = (
        ("source=runs/search judge=llm judge.rubric=configs/judges/rubric.yaml judge.url=http://localhost:8000/v1 "
         "judge.model=MODEL", "a model with a rubric, held against the verifier of the run"),
        ("source=runs/search judge=my_judge:frugal n=200", "a judge of your own, on 200 trajectories"),
        ("source=runs/search compare=my_judge:better", "a comparator of attempts: is it swayed by their order?"),
    )  # fmt: skip

    source: tuple[str, ...] = key((), "run directories whose trees hold the judged trajectories", strict=False)
    judge: JudgeSection = section(JudgeSection, "the judge that is held against the verdicts of the run")
    compare: CompareSection = section(CompareSection, "the comparator that is held against them")
    n: int | None = key(400, "most trajectories that are judged, drawn by the seed; null = all", ge=1)
    workers: int = key(4, "judgements that are asked for at once", ge=1, le=256, free=True)
    length: Literal["characters", "steps"] = key("characters", "the length that the table is broken down by")
    bins: int = key(3, "classes of length, with about as many trajectories each", ge=2, le=10)
    confidence: float = confidence_key(0.95, "coverage of the Wilson intervals")

    @field_validator("source", mode="before")
    @classmethod
    def _one(cls, source: Any) -> Any:
        return (source,) if isinstance(source, str) else tuple(source) if isinstance(source, list) else source
