"""The list of commands, each with --help; `offline-agent NAME` is the same as `python -m offline_agent.pipelines.NAME`:

python -m offline_agent.pipelines.audit         what does an environment leak, and what does its verifier pay for?
python -m offline_agent.pipelines.build_prefs   search tasks, judge, write preference pairs and filtered trajectories
python -m offline_agent.pipelines.capture       keep the model calls of an agent, token by token, as a log
python -m offline_agent.pipelines.import_logs   turn logs of agents into preference pairs and verified trajectories
python -m offline_agent.pipelines.rejudge       give a run's trajectories another judge's verdicts; pairs are made anew
python -m offline_agent.pipelines.train_sft     train on demonstrations, or on verified successes
python -m offline_agent.pipelines.train_dpo     train on preference pairs
python -m offline_agent.pipelines.evaluate      play held-out tasks, with intervals; compare two policies
python -m offline_agent.pipelines.iterate       all of these in turn, again and again; promote what is not worse
python -m offline_agent.pipelines.refine_grpo   train on what the policy plays, online
python -m offline_agent.pipelines.train_reward  train a reward model on verdicts, or a step model on a search's values
python -m offline_agent.pipelines.export        write a run's rows as files of TRL, LLaMA-Factory, Axolotl, verl, ...
python -m offline_agent.pipelines.report        write a run as a page to look at, report.html
python -m offline_agent.pipelines.inspect       look at a run on the terminal: trees, pairs, trajectories
python -m offline_agent.pipelines.compare       compare evaluations by paired tests
python -m offline_agent.pipelines.status        what has become of a run
python -m offline_agent.pipelines.doctor        what of this machine the commands can use, and what each lack costs
python -m offline_agent.envs.conformance        is this environment fit to be searched?

Those that search, train or evaluate run without a key too: on the embedded shop and its model, on this machine.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Sequence

from offline_agent.errors import did_you_mean

COMMANDS: dict[str, tuple[str, str]] = {
    module.rpartition(".")[2]: (module, about)
    for module, about in re.findall(r"^python -m (\S+) +(.*)$", __doc__ or "", re.MULTILINE)
}
"""Module and purpose of each command, by name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command by its name, or list the commands.

    Args:
        arguments: The name of the command and its arguments; None = those of `sys.argv`.

    Returns:
        The command's exit status; 0 for the list, 2 where there is no such command.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if set(given) <= {"--help", "-h", "help"}:
        print(__doc__)
        return 0
    name, *rest = given
    name = name.replace("-", "_")
    if name not in COMMANDS:
        print(f"{given[0]}: there is no such command.{did_you_mean(name, COMMANDS)} {__doc__}", file=sys.stderr)
        return 2
    sys.argv = [f"offline-agent {name}", *rest]
    try:
        runpy.run_module(COMMANDS[name][0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return int(end.code or 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
