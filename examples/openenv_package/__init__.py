from .client import CountdownEnv
from .models import CountdownAction, CountdownObservation

__all__ = ["CountdownAction", "CountdownEnv", "CountdownObservation"]
