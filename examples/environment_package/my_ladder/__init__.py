"""An environment as a package: `env=ladder` on every command, and a judge, `judge=rungs`."""


class Ladder:
    """Climb to a given rung, two or three rungs at a time."""

    system_prompt = "Climb to the rung you are told, and no higher."

    @classmethod
    def tasks(cls, split):  # the tasks of a split: dicts of reset's arguments
        start = {"train": 6, "validation": 16, "test": 26}[split]
        return ({"rung": n} for n in range(start, start + 10))

    def reset(self, rung: int) -> str:  # the first observation
        self._rung, self._at, self.terminated = rung, 0, False
        return f"Climb to rung {rung}. You stand on the ground."

    def climb(self, rungs: int) -> str:  # a tool: a public method with type hints and a Google docstring
        """Climb some rungs.

        Args:
            rungs: How many rungs (choices: [2, 3])
        """
        self._at += rungs
        self.terminated = self._at >= self._rung
        return f"You stand on rung {self._at}."

    def get_reward(self) -> float:  # in [0, 1]; 1.0 = success
        return float(self._at == self._rung)

    @property
    def fingerprint(self) -> str:  # optional: a hash of the state
        return str(self._at)


def rungs(trajectory, most: int = 12):
    """Judge as the environment does, but count no success with more than so many calls."""
    score = trajectory.verdict.score
    return score if score is None or len(trajectory.steps) <= most else 0.0
