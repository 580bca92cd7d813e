"""Requests and costs of each model server, for summaries and closing tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Figures = Mapping[str, Sequence[Mapping[str, Any]]]
Elsewhere = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]


def of_servers(policies: Mapping[str, Any], elsewhere: Elsewhere | None = None) -> dict[str, Any]:
    """Return `servers` for a summary: by the policies' labels, what `ServerPolicy.server_figures` says.

    Policies that have no servers are left out; nothing where none has.

    Args:
        policies: By their labels.
        elsewhere: By label, what other processes of the run say of the same servers: it is added.
    """
    found = {label: policy.server_figures() for label, policy in policies.items() if hasattr(policy, "server_figures")}
    for label, others in (elsewhere or {}).items():
        for other in others:
            found[label] = [_sum(*pair) for pair in zip(found[label], other, strict=True)]
    return {"servers": found} if found else {}


def _sum(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Add counts; the cache's are over all clients anyway, and whether a server is out is for this process to say."""
    added = {name: value + theirs[name] for name, value in ours.items() if isinstance(value, int) and name in theirs}
    return {**ours, **added, "last_error": ours.get("last_error") or theirs.get("last_error")}


def tables(summary: Mapping[str, Any]) -> list[Any]:
    """Return a closing table for each policy of a summary that had more than one server."""
    from rich.table import Table

    out: list[Any] = []
    figures: Figures = summary.get("servers", {})
    for label, servers in figures.items():
        if len(servers) < 2:
            continue
        table = Table(title="servers, this session" + (f" ({label})" if len(figures) > 1 else ""))
        for column in ("server", "requests", "sampled", "prompt", "reused", "cache", "errors", "time-outs", "out"):
            table.add_column(column, justify="left" if column == "server" else "right")
        for one in servers:
            table.add_row(*_row(one))
        out.append(table)
        out += [f"{one['url']} is out: {one['out']}" for one in servers if one.get("out")]
    return out


def _row(one: Mapping[str, Any]) -> list[str]:
    cache = one["cache"]
    return [
        one["url"],
        *(f"{one[name]:,}" for name in ("requests", "generated_tokens", "prefilled_tokens", "reused_tokens")),
        "–" if not cache or not cache["queries"] else f"{cache['hits'] / cache['queries']:.0%}",
        *(f"{one[name]:,}" for name in ("errors", "timeouts")),
        f"{one['ejections']}×" + (", still" if one["out"] else ""),
    ]
