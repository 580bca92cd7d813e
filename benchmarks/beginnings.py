"""Effect of a small model's initial weights: the default model's training from three initialisations.

Run `python benchmarks/beginnings.py` (`--updates`: of each; the schedule is the default model's own, cut off there).
Same data in the same order; what differs is how the untrained weights are drawn. The figures are `discernment.py`'s.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from _common import write_result
from discernment import look, pages
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from tools.default_model.train import TrainingConfig, build_model, train


def drawn(deviation: float | None) -> Callable[[TrainingConfig, Any], Any]:
    """Return what builds the model with plain random weights of this deviation; None = 1/sqrt(width)."""

    def build(config: TrainingConfig, tokenizer: Any) -> Any:
        shape = build_model(config, tokenizer).config
        if deviation is not None:
            shape.initializer_range = deviation
        torch.manual_seed(config.seed)
        return LlamaForCausalLM(shape).float()

    return build


BEGINNINGS = {
    "deviation 0.02, as usual": drawn(0.02),
    "deviation 1/sqrt(width)": drawn(None),
    "and half of the key heads as their query heads": build_model,
}


def main() -> None:
    """Train, look, record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--tasks", type=int, default=100, help="validation tasks whose pages are looked at")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = TrainingConfig()
    config = replace(config, rounds=(replace(config.rounds[0], stop=options.updates),))
    rows = []
    for name, build in BEGINNINGS.items():
        with tempfile.TemporaryDirectory() as folder:
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                train(config, Path(folder), log_every=options.updates // 3 or 1, build=build)
            losses = [line.split()[3] for line in said.getvalue().splitlines() if line.startswith("step")]
            tokenizer = AutoTokenizer.from_pretrained(folder)
            found = list(pages(tokenizer, options.tasks, 0.5))
            model = AutoModelForCausalLM.from_pretrained(folder).eval()
            rows.append({"weights begin with": name, "losses": " → ".join(losses), **look(model, found, tokenizer)})
    write_result("beginnings", rows, {"updates": options.updates, "product pages": len(found)}, options.out)


if __name__ == "__main__":
    main()
