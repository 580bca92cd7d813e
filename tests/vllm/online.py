"""What `refine_grpo` left that a real server played for: `python -m tests.vllm.online RUN_DIR MODEL`.

Every round has to be sampled from the weights that the trainer had at its beginning, and those have to change.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from offline_agent.policies.hf.policy import HFPolicy
from offline_agent.records import Task
from offline_agent.rollouts.attempts import Attempt, from_record
from offline_agent.store.events import EventLog
from tests.vllm.kit import close, logps_of

SIZE = 4  # roll-outs of a group
LARGEST_MISMATCH = 1e-3  # nats; float32 on both sides


def main(run_dir: str, model: str) -> int:
    """Hold the first and the last round against the first weights; raise AssertionError where they should not be so."""
    updates = [record for record in EventLog(Path(run_dir, "events", "0000.jsonl")).read() if "update" in record]
    for record in updates:
        shown = ", ".join(f"{name} {record[name]:.2g}" for name in ("reward_mean", "gradient", "mismatch"))
        print(f"update {record['update']}: {shown}")
        assert record["mismatch"] < LARGEST_MISMATCH / 10, "a round was not played with the trainer's weights"
    played = rounds(Path(run_dir))
    assert len(played) == len(updates) > 1
    policy = HFPolicy(model, max_tokens=64)
    first, last = ([gap for attempt in played[at] for gap in gaps(attempt, policy)] for at in (0, max(played)))
    policy.close()
    print(f"against the first weights: round 0 off by up to {max(first):.2g}, the last round by up to {max(last):.2g}")
    assert max(first) < LARGEST_MISMATCH < max(last), "the last round was played with the first weights"
    return 0


def rounds(run: Path) -> dict[int, list[Attempt]]:
    """Return what was played, by round."""
    openings, found = {}, defaultdict(list)
    for record in EventLog(run / "events" / "rollouts.jsonl").read():
        if "attempt" not in record:
            openings[record["name"]] = (record["system"], record["tools"])
            continue
        _, _, task_id, number = record["attempt"]
        attempt = from_record(record, Task(task_id, "train", {}), openings)
        assert attempt.reward is not None, attempt.verdict.error
        found[number // SIZE].append(attempt)
    return dict(found)


def gaps(attempt: Attempt, policy: HFPolicy) -> list[float]:
    """Return |the server's log-probability - the model's| of every sampled token."""
    out: list[float] = []
    assert attempt.context is not None
    for node in attempt.context.lineage():
        if node.action is not None and node.parent is not None:
            ids, logps = node.action.token_ids, node.action.logps
            assert ids is not None and logps is not None, "a roll-out without log-probs"
            out += close(logps_of(policy, node.parent, ids), logps)
    return out


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
