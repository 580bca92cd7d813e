"""Linking: the episodes of one task as trees of equal prefixes, with the outcomes of the logs as values.

Two episodes share a node exactly where all messages up to it are equal. A turn that was answered differently in another
episode is an edge of its own (`search.nodes.same_turn`): what the world did is not the turn's merit. Episodes whose
tools or opening messages differ share nothing, so they are in different trees.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from offline_agent.judges.judge import AnyJudge
from offline_agent.logs.coding import CONTRADICT
from offline_agent.logs.conversation import is_turn
from offline_agent.logs.episode import LoggedEpisode, TurnTokens, digest
from offline_agent.logs.sessions import Outcomes, without_parts
from offline_agent.logs.tokens import TokenCheck
from offline_agent.preferences.pairs.trajectory import trajectory
from offline_agent.preferences.records import Refusal
from offline_agent.records import Action, Context, Message, Recorded, Role, Task, ToolCall, Verdict, cut_verdict
from offline_agent.search.nodes import ANSWERED
from offline_agent.search.tree import Node, SearchTree, back_up

VERIFIER, VERSION = "log", "1"
UNSURE = "labels"  # cuts an episode whose next call a model does not name surely enough (`labels.Labels`)
CONTRADICTION = "the same messages have different outcomes"
_SHOWN = 5  # logs that a verdict names
Turn = tuple[Message, tuple[Message, ...]]
Rules = Callable[[LoggedEpisode], tuple[LoggedEpisode, str | None]]


@dataclass(frozen=True, slots=True)
class Linked:
    """The episodes of one task, linked.

    Attributes:
        trees: In the order of their first episodes.
        refusals: The episodes that were left out, and those that the judge could not score.
        counts: Number of `episodes` in the trees; of `parts`, which a longer one of them continues; of those `judged`,
            whose outcome is known; `ruled`, by rules, `replayed` among them; whose rules contradict each other
            (`rules_contradict`); `exact` ones: their ids prove what was sampled.
        doubts: Why the ids of others do not, with their number.
        drift: Of the exact ones: `episodes`, and how many of them this tokenizer's template renders to the same ids
            (`same_ids`) and to the same text (`same_text`).
        rendered: Of those that were rendered (`TokenCheck.stable`): `episodes`, and how many of them have in one piece
            what each turn's own prompt has, as ids (`same_ids`) and as text (`same_text`).
    """

    trees: list[SearchTree] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    doubts: Counter[str] = field(default_factory=Counter)
    drift: Counter[str] = field(default_factory=Counter)
    rendered: Counter[str] = field(default_factory=Counter)


def link(
    episodes: Sequence[LoggedEpisode],
    judge: AnyJudge | None = None,
    tokens: TokenCheck | None = None,
    outcomes: Outcomes | None = None,
    rules: Rules | None = None,
) -> Linked:
    """Return the trees of one task's episodes.

    A part is an episode that a longer one continues, such as an earlier call of the API in the same session: it is
    inside the longer one, so nothing of it is left out. Its session must be the same where both have one, and it has
    no outcome or the same. A session that comes again with the same messages and outcome is left out.

    Args:
        episodes: Those of one task, in the order of the logs.
        judge: Gives the verdict on ends whose outcome the log does not tell; None = they stay without one.
        tokens: Checks the ids of the log; None = they are not read.
        outcomes: Of sessions, apart from their records; None = there are none.
        rules: Read outcomes off the log before a judge is asked (`coding.ruled`); None = nothing does.
    """
    linked = Linked()
    whole = without_parts(episodes)
    linked.counts["parts"] = len(episodes) - len(whole)
    whole = list(_ruled(whole if outcomes is None else outcomes.told(whole), rules, linked))
    trees: dict[str, _Builder] = {}
    sessions: set[tuple[str, str]] = set()
    for episode in whole:
        if episode.session is not None:
            content = digest([episode.messages, episode.tools, episode.score, episode.success, episode.choice])
            if (episode.session, content) in sessions:
                why = f"session {episode.session} was read before, the same"
                linked.refusals.append(Refusal("log", episode.name, why))
                continue
            sessions.add((episode.session, content))
        opening, turns = turns_of(episode.messages)
        key = digest([opening, episode.tools, episode.split])
        if key not in trees:
            name = f"{episode.group}~{key}" if trees else episode.group
            trees[key] = _Builder(episode, opening, name, tokens, linked)
        trees[key].add(episode, turns)
    for builder in trees.values():
        builder.finish(judge)
    return linked


def _ruled(episodes: Sequence[LoggedEpisode], rules: Rules | None, linked: Linked) -> Iterator[LoggedEpisode]:
    """Yield episodes with the outcomes that rules read off their logs; name what is amiss."""
    ends = {one.session or one.name: number for number, one in enumerate(episodes)}  # the last of each session
    for number, one in enumerate(episodes):
        if rules is not None and (one.signs or ends[one.session or one.name] == number):
            one, amiss = rules(one)
            linked.counts.update(ruled=bool(one.evidence), replayed="replay" in one.evidence,
                                 rules_contradict=str(amiss).startswith(CONTRADICT))  # fmt: skip
            linked.refusals.extend([Refusal("outcome", one.name, amiss)] if amiss else [])
        yield one


def turns_of(messages: Sequence[Message]) -> tuple[tuple[Message, ...], list[Turn]]:
    """Return the messages before the first turn, and each turn with the messages that follow it."""
    starts = [number for number, message in enumerate(messages) if is_turn(message)]
    ends = [*starts[1:], len(messages)]
    turns = [(messages[at], tuple(messages[at + 1 : end])) for at, end in zip(starts, ends, strict=True)]
    return tuple(messages[: starts[0]]), turns


class _Builder:
    """Builds one tree.

    Args:
        first: The first of its episodes.
        opening: The messages before the first turn.
        name: The tree's id.
        tokens: Checks ids; None = they are not read.
        linked: Gets the tree, the refusals and the counts.
    """

    def __init__(
        self, first: LoggedEpisode, opening: tuple[Message, ...], name: str, tokens: TokenCheck | None, linked: Linked
    ) -> None:
        task = Task(first.group, first.split, dict(first.args))
        system = "\n\n".join(message["content"] for message in opening if message["role"] == "system")
        asked = shown(message for message in opening if message["role"] != "system")
        self._tree = SearchTree(Context(task, system, first.tools, asked, recorded=Recorded(opening)), name)
        self._ends: dict[int, list[LoggedEpisode]] = {}
        self._tokens, self._linked = tokens, linked

    def add(self, episode: LoggedEpisode, turns: Sequence[Turn]) -> None:
        """Add an episode: its turns as a path, its outcome where the path ends."""
        nodes = [self._tree.root]
        for message, answers in turns:
            nodes.append(self._follow(nodes[-1], message, answers))
        self._ends.setdefault(nodes[-1].id, []).append(episode)
        self._linked.counts["episodes"] += 1
        if self._tokens is not None:
            self._check(self._tokens, episode, nodes)

    def _check(self, tokens: TokenCheck, episode: LoggedEpisode, nodes: Sequence[Node]) -> None:
        """Give the ids of an episode to its path if they prove what was sampled; count how rendering it differs."""
        linked = self._linked
        if (stable := tokens.stable(episode.messages, episode.tools)) is not None:
            linked.rendered.update(episodes=1, same_ids=int(stable[0]), same_text=int(stable[1]))
        if not episode.tokens:
            return
        doubt = tokens.fault(episode.messages, episode.tokens, episode.tools) or self._take_ids(nodes, episode.tokens)
        if doubt is not None:
            linked.doubts[doubt] += 1
            return
        linked.counts["exact"] += 1
        last = max(n for n, message in enumerate(episode.messages) if is_turn(message))
        assert episode.tokens[-1] is not None  # all are there, as was checked
        prompt = episode.tokens[-1].prompt
        ids, text = tokens.rendered_alike(episode.messages[:last], episode.tools, prompt)
        linked.drift.update(episodes=1, same_ids=int(ids), same_text=int(text))

    def _take_ids(self, nodes: Sequence[Node], tokens: Sequence[TurnTokens | None]) -> str | None:
        """Give the ids of an episode to its path; return why that cannot be, None where it can."""
        known = [one for one in tokens if one is not None]  # all, as was checked
        # what each prompt adds to the turn before it; or all of it, where it does not go on with that
        before = [(*one.prompt, *one.sampled) for one in known]
        anew = [two.prompt[: len(one)] != one for one, two in zip(before, known[1:], strict=False)]
        added = [two.prompt[0 if new else len(one) :] for one, two, new in zip(before, known[1:], anew, strict=False)]
        ids, whole = [known[0].prompt, *added, ()], [False, *anew, False]
        for node, own, new, turn in zip(nodes, ids, whole, [None, *known], strict=True):
            after, action = node.context.recorded, node.context.action
            assert after is not None  # all contexts here are of logs
            same = after.ids is None or (after.ids, after.whole) == (own, new) or not (after.ids and own)
            if not same or (turn and action and action.token_ids not in (None, turn.sampled)):
                return "another episode has other ids for the same messages"
        for node, own, new, turn in zip(nodes, ids, whole, [None, *known], strict=True):
            context = node.context
            if context.recorded is not None and not context.recorded.ids:
                context.recorded.ids, context.recorded.whole = own, new
            if turn is not None and context.action is not None and context.action.token_ids is None:
                assert self._tokens is not None and node.edge is not None
                context.action = self._tokens.action(turn, context.action.message(), context.tools)
                assert context.action is not None  # checked before
                node.edge.actions[0] = context.action
        return None

    def finish(self, judge: AnyJudge | None) -> None:
        """Complete the tree: outcomes are backed up, what contradicts itself is in quarantine."""
        tree = self._tree
        unjudged = [tree.nodes[id] for id, episodes in self._ends.items() if not self._end(tree.nodes[id], episodes)]
        for node in unjudged:
            if judge is None:
                break
            episodes = self._ends[node.id]
            verdict = judge(trajectory(tree, node))
            node.verdict = verdict = replace(verdict, evidence={**verdict.evidence, **_labels(episodes[0])})
            if verdict.score is None:
                why = f"{verdict.verifier}: {verdict.error}"
                self._linked.refusals.append(Refusal("log", episodes[0].name, why))
            for _ in episodes if verdict.score is not None else ():
                self._back_up(node, verdict)
        for edge in tree.edges:
            edge.prior = edge.count / edge.parent.samples
        tree.stopped = "logs"
        tree.counters["tool_calls"] = sum(len(edge.actions[0].message().get("tool_calls", ())) for edge in tree.edges)
        self._linked.trees.append(tree)
        self._linked.counts["judged"] += len(tree.first_rollouts)

    def _follow(self, node: Node, message: Message, answers: tuple[Message, ...]) -> Node:
        key = turn_key(message)
        edge = self._tree.find(node, key)
        if edge is not None and edge.child is not None and edge.child.context.recorded != answers:
            key += ANSWERED + digest(answers)
        edge, new = self._tree.add_proposal(node, _action(message), key)
        if new:
            role: Role = "tool" if any(answer["role"] == "tool" for answer in answers) else "user"
            seen = shown(answers) if answers else None
            self._tree.add_child(edge, node.context.child(edge.actions[0], seen, role, Recorded(answers)))
        assert edge.child is not None
        return edge.child

    def _end(self, node: Node, episodes: Sequence[LoggedEpisode]) -> bool:
        """Note an end of some episodes with the same messages; return whether it is settled, and no judge is asked."""
        whole = [episode for episode in episodes if not episode.labels.get("left_out")]
        judged = [episode for episode in whole if episode.score is not None]
        cut = not judged and any(episode.cut for episode in episodes)
        outcomes = {(episode.success, episode.score) for episode in judged}
        edge = node.edge
        assert edge is not None  # every episode has a turn
        node.terminated, node.cut = bool(whole) and not cut, "tokens" if cut else None if whole else UNSURE
        if len(outcomes) > 1:
            names = ", ".join(episode.name for episode in judged[:_SHOWN])
            edge.quarantined = f"{CONTRADICTION} ({names})"
            return True
        if cut:
            verdict = cut_verdict("tokens")
        elif judged:
            first = judged[0]
            facts = {"logs": [episode.name for episode in judged[:_SHOWN]], "field": first.outcome, **first.evidence}
            facts |= _labels(first)
            if first.stated is not None:
                facts["stated_by_caller"] = first.stated
            by = str(first.outcome) if first.evidence else VERIFIER
            node.verdict = verdict = Verdict(first.score, first.success, by, VERSION, facts)
        else:
            if facts := _labels(episodes[0]):
                why = "nobody judged it" if whole else "the rest of its calls is not known"
                node.verdict = Verdict(None, None, VERIFIER, VERSION, facts, why)
            return not whole
        for _ in judged or episodes:
            self._back_up(node, verdict)
        return True

    def _back_up(self, node: Node, verdict: Verdict) -> None:
        tree, score = self._tree, float(verdict.score or 0.0)
        tree.note_first(verdict, node.cut, node.depth)
        tree.commits += 1
        back_up(tree, node, score, score, bool(verdict.success), node.cut is not None, gamma=1.0)


def _labels(episode: LoggedEpisode) -> dict[str, Any]:
    """Return the evidence that a model named the calls of an episode; none where they were logged."""
    return {"labels": dict(episode.labels)} if episode.labels else {}


def turn_key(message: Mapping[str, Any]) -> str:
    """Return the key of a turn: its calls with arguments as sorted JSON, and a digest of what it says beside them.

    Turns with the same key are the same message, so that what follows one follows the other.
    """
    calls = [
        call["function"]["name"] + json.dumps(call["function"]["arguments"], sort_keys=True, ensure_ascii=False)
        for call in message.get("tool_calls", ())
    ]
    said = [message["content"], message.get("reasoning_content")]
    if not calls:
        return f"answer:{message['content']}" if said[1] is None else f"answer:{message['content']} #{digest(said)}"
    return " ".join(calls) if said == ["", None] else f"{' '.join(calls)} #{digest(said)}"


def _action(message: Message) -> Action:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    said = [text for text in (message.get("reasoning_content"), message["content"]) if text]
    text = "\n".join([*said, *(json.dumps(call, ensure_ascii=False) for call in calls)])
    call = ToolCall(calls[0]["name"], calls[0]["arguments"]) if len(calls) == 1 else None
    return Action(text, "\n".join(said), call, recorded=message)


def shown(messages: Iterable[Message]) -> str:
    """Return what messages say, as one observation."""
    return "\n".join(message["content"] for message in messages)
