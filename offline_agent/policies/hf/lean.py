"""Names of transformers whose import takes scikit-learn along where that is installed, imported without it.

That slows the start of each command, for one function by which assisted decoding sets its threshold; nothing here
decodes so. mlflow installs scikit-learn.
"""

from transformers import utils

_is_there = utils.is_sklearn_available
utils.is_sklearn_available = lambda: False
import transformers.generation.candidate_generator  # noqa: E402, F401

utils.is_sklearn_available = _is_there

from transformers import AttentionInterface, AutoModelForCausalLM, AutoModelForImageTextToText  # noqa: E402

__all__ = ["AttentionInterface", "AutoModelForCausalLM", "AutoModelForImageTextToText"]
