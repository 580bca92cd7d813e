"""Model classes of transformers, imported without scikit-learn.

transformers imports scikit-learn, which mlflow installs, for one function of assisted decoding that nothing here calls.
The import slows the start of each command.
"""

from transformers import utils

_is_available = utils.is_sklearn_available
utils.is_sklearn_available = lambda: False
import transformers.generation.candidate_generator  # noqa: E402, F401

utils.is_sklearn_available = _is_available

from transformers import AttentionInterface, AutoModelForCausalLM, AutoModelForImageTextToText  # noqa: E402

__all__ = ["AttentionInterface", "AutoModelForCausalLM", "AutoModelForImageTextToText"]
