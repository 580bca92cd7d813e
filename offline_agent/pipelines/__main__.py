"""The list of commands, each with --help:

python -m offline_agent.pipelines.audit         what does an environment leak, and what does its verifier pay for?
python -m offline_agent.pipelines.build_prefs   search tasks, judge, write preference pairs and filtered trajectories
python -m offline_agent.pipelines.capture       keep the model calls of an agent, token by token, as a log
python -m offline_agent.pipelines.import_logs   turn logs of agents into preference pairs and verified trajectories
python -m offline_agent.pipelines.train_sft     train on demonstrations, or on verified successes
python -m offline_agent.pipelines.train_dpo     train on preference pairs
python -m offline_agent.pipelines.evaluate      play held-out tasks, with intervals; compare two policies
python -m offline_agent.pipelines.iterate       all of these in turn, again and again; promote what is not worse
python -m offline_agent.pipelines.refine_grpo   train on what the policy plays, online
python -m offline_agent.pipelines.calibrate     hold a judge against the verifier of a run's trajectories
python -m offline_agent.pipelines.train_reward  train a reward model on the verdicts of a run
python -m offline_agent.pipelines.export        write a run's rows as files of TRL, LLaMA-Factory, Axolotl, verl, ...
python -m offline_agent.pipelines.show          look at pairs of a run
python -m offline_agent.pipelines.status        what has become of a run
python -m offline_agent.pipelines.track         send to MLflow what a run could not send
python -m offline_agent.envs.conformance        is this environment fit to be searched?

Those that search, train or evaluate run without a key too: on the embedded shop and its model, on this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """List the commands; 0 where that was asked for, 2 where something else was."""
    if set(arguments) <= {"--help", "-h"}:
        print(__doc__)
        return 0
    print(f"{arguments[0]}: there is no such command here. {__doc__}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
