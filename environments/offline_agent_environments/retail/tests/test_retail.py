"""A service desk: the embedded shop, its talking customers, tools that refuse, played users."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.errors import ConfigError, EnvironmentFault
from offline_agent.records import Action, Task
from offline_agent_environments.retail import Retail, shop, world
from offline_agent_environments.retail.desk import evaluate
from tests.helpers.played import call, expert, play, share

SPEC = EnvSpec.load("retail")
SPLITS = ("train", "validation", "test")
TASKS = [task for split in SPLITS for task in SPEC.tasks(split)]


def _with(kind: str, only: bool = True) -> Task:
    """Return a task with a request of that kind, and no other one if wished."""
    for task in TASKS:
        kinds = [request["kind"] for request in task.args["scenario"]["requests"]]
        if kind in kinds and (not only or len(kinds) == 1):
            return task
    raise LookupError(kind)


def _say(text: str) -> Action:
    return Action(text)


def test_the_expert_fulfils_all_requests_and_no_user_is_in_two_splits():
    users = {split: {t.args["scenario"]["user_id"] for t in SPEC.tasks(split)} for split in SPLITS}
    assert not users["train"] & users["test"] and not users["validation"] & (users["train"] | users["test"])
    assert min(len(list(SPEC.tasks(split))) for split in SPLITS) > 80 and share(SPEC, TASKS[::7]) == 1.0
    kinds = {request["kind"] for task in TASKS for request in task.args["scenario"]["requests"]}
    assert kinds == {"cancel", "refuse", "items", "return", "address", "payment", "move", "total", "track"}
    assert share(SPEC, TASKS[:60], 0.6) < share(SPEC, TASKS[:60], 0.1) < 1.0


def test_no_task_is_fulfilled_by_saying_nothing():
    for task in TASKS[::5]:
        assert play(SPEC, task, [_say("")] * 5).verdict().score == 0.0


def test_a_customer_tells_what_is_asked_and_confirms_only_what_fits():
    task = _with("cancel")
    request = task.args["scenario"]["requests"][0]
    episode = play(SPEC, task, [])
    heard = [episode.step(_say(text)).observation for text in (
        "May I have your email?", "Which order is it, and what is the reason?", "I see.",
        f"Please confirm: cancel {request['order']} because it is purple.",
        f"Please confirm: cancel {request['order']}, {request['call']['arguments']['reason']}.",
    )]  # fmt: skip
    assert heard[0] == task.args["scenario"]["identity"]
    assert request["tells"]["order"] in heard[1] and request["tells"]["reason"] in heard[1]
    assert (
        heard[2].startswith("I do not follow") and heard[3].startswith("No, that is not") and heard[4] == "Yes, please."
    )
    assert episode.step(_say("Done. Is there anything else?")).terminated
    assert episode.verdict().success is False  # it was said, and not done


def test_a_customer_who_is_not_understood_goes():
    episode = play(SPEC, _with("cancel"), [_say("Nice weather.")] * 2)
    assert not episode.terminated and episode.step(_say("Indeed.")).terminated


def test_a_changed_detail_is_no_success_and_the_evidence_names_it():
    task = _with("cancel")
    right = task.args["actions"][0]["arguments"]
    wrong = {**right, "reason": next(r for r in world._REASONS if r != right["reason"])}
    assert play(SPEC, task, [call("cancel_pending_order", **right)]).verdict().success
    verdict = play(SPEC, task, [call("cancel_pending_order", **wrong)]).verdict()
    assert verdict.score == 0.0
    assert list(verdict.evidence["differences"]["changed"]) == [f"orders.{right['order_id']}.cancel_reason"]


def test_a_fact_has_to_be_said():
    task = _with("total")
    fact = task.args["communicate"][0]
    assert play(SPEC, task, [_say(f"You paid ${fact}.")]).verdict().success
    verdict = play(SPEC, task, [_say("You paid enough.")]).verdict()
    assert verdict.success is False and verdict.evidence["unsaid"] == [fact] and verdict.evidence["database"] is True


def test_what_the_policy_refuses_must_not_be_done():
    task = _with("refuse", only=False)
    request = next(r for r in task.args["scenario"]["requests"] if r["kind"] == "refuse")
    done = [call(a["name"], **a["arguments"]) for a in task.args["actions"]]
    done += [_say(" ".join(task.args["communicate"]))] if task.args["communicate"] else []
    forbidden = call("cancel_pending_order", order_id=request["order"], reason="no longer needed")
    assert play(SPEC, task, done).verdict().success
    assert play(SPEC, task, [forbidden, *done]).verdict().success is False


def test_a_snapshot_shares_neither_changes_nor_the_customer_s_patience():
    task = _with("cancel")
    one = play(SPEC, task, [_say("Hm.")])
    before, twin = one.fingerprint(), one.copy()
    twin.step(call("cancel_pending_order", **task.args["actions"][0]["arguments"]))
    twin.step(_say("Hm."))
    assert one.fingerprint() == before != twin.fingerprint()
    assert twin.verdict().success and one.verdict().success is False and not one.terminated
    assert one.step(_say("Hm.")).observation is not None and twin.step(_say("Hm.")).terminated


def test_the_shop_s_own_records_are_never_changed():
    before = json.dumps(shop.database(), sort_keys=True)
    for task in TASKS[:40]:
        expert(SPEC, task, noise=0.3)
    assert json.dumps(shop.database(), sort_keys=True) == before


@pytest.mark.parametrize(
    ("status", "tool", "arguments", "told"),
    [
        (
            "processed",
            "cancel_pending_order",
            {"reason": "no longer needed"},
            "the order is processed; allowed: pending",
        ),
        ("pending", "cancel_pending_order", {"reason": "too dear"}, "allowed: 'no longer needed' or"),
        (
            "pending",
            "return_delivered_order_items",
            {"item_ids": ["1"], "payment_method_id": "x"},
            "allowed: delivered",
        ),
        (
            "delivered",
            "return_delivered_order_items",
            {"item_ids": ["1"], "payment_method_id": "x"},
            "no payment method 'x'",
        ),
        ("pending", "modify_pending_order_payment", {"payment_method_id": "OWN"}, "allowed: another one"),
        (
            "pending",
            "modify_pending_order_items",
            {"item_ids": [], "new_item_ids": [], "payment_method_id": "OWN"},
            "got none",
        ),
        (
            "pending",
            "modify_pending_order_items",
            {"item_ids": ["1"], "new_item_ids": ["2"], "payment_method_id": "OWN"},
            "has 0 of item '1'",
        ),
    ],
)
def test_tools_refuse_what_cannot_be(status: str, tool: str, arguments: dict[str, Any], told: str):
    order = next(o for o in shop.database()["orders"].values() if o["status"] == status)
    own = order["payment_history"][0]["payment_method_id"]
    arguments = {name: own if value == "OWN" else value for name, value in arguments.items()}
    episode = play(SPEC, TASKS[0], [])
    before = episode.fingerprint()
    result = episode.step(call(tool, order_id=order["order_id"], **arguments))
    assert result.fault == "tool_error" and told in result.observation and episode.fingerprint() == before


def test_money_goes_to_and_comes_from_gift_cards():
    data = shop.database()
    order, card = next(
        (order, order["payment_history"][0]["payment_method_id"])
        for order in data["orders"].values()
        if order["status"] == "pending" and "gift" in order["payment_history"][0]["payment_method_id"]
    )
    episode = play(
        SPEC, TASKS[0], [call("cancel_pending_order", order_id=order["order_id"], reason="no longer needed")]
    )
    user = json.loads(episode.step(call("get_user_details", user_id=order["user_id"])).observation)
    paid = order["payment_history"][0]["amount"]
    balance = data["users"][order["user_id"]]["payment_methods"][card]["balance"]
    assert user["payment_methods"][card]["balance"] == pytest.approx(balance + paid)


def test_rows_of_a_table_fill_up_with_none():
    task = _with("cancel")
    args = json.loads(json.dumps(task.args))
    args["actions"][0]["arguments"]["zip"] = args["scenario"]["requests"][0]["fact"] = None
    verdict, _ = expert(SPEC, Task("t", "train", args))
    assert verdict.success


def test_the_calculator_computes_and_runs_no_code():
    assert evaluate("(12.5 + 3) * -4 / 2") == -31.0
    for text in ("__import__('os')", "2 ** 9 ** 9", "1 / 0", "a", "(" * 300 + "1" + ")" * 300, "'a' * 9", "True", ""):
        with pytest.raises(ValueError):
            evaluate(text)


@pytest.mark.parametrize(("args", "told"), [
    ({"user": "script"}, "allowed: scripted, a URL"),
    ({"user": "no_such_module:user"}, "no module"), ({"user": "json:__doc__"}, "it is called as user"),
])  # fmt: skip
def test_bad_arguments_are_refused(args: dict[str, str], told: str):
    with pytest.raises(ConfigError, match=told):
        Retail(**args)


def echo(instructions: str, messages: list[dict[str, str]]) -> str:
    """Play a user who goes at the second turn."""
    assert instructions.startswith("I am ") and messages[0]["role"] == messages[-1]["role"] == "user"
    return "###STOP###" if len(messages) > 3 else f"You said: {messages[-1]['content']}"


def test_a_callable_plays_the_user():
    spec = EnvSpec.load("retail", {"user": f"{__file__}:echo"})
    episode = play(spec, TASKS[0], [])
    assert episode.reset(TASKS[0]) == "You said: Hello. How can I help you?"
    twin = episode.copy()
    assert episode.step(_say("Well?")).observation == "You said: Well?"
    assert episode.step(_say("Well?")).terminated
    assert twin.step(_say("What?")).observation == "You said: What?"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:  # noqa: N802
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/chat/completions" and asked["model"] == "small" and asked["temperature"] == 0
        told = f"{asked['messages'][0]['role']}, {len(asked['messages'])}"
        body = json.dumps({"choices": [{"message": {"content": told}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""


@pytest.fixture()
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_model_behind_a_server_plays_the_user(url: str):
    episode = play(EnvSpec.load("retail", {"user": url, "user_model": "small"}), TASKS[0], [])
    assert episode.step(_say("Well?")).observation == "system, 4"


def test_a_dead_server_of_the_user_is_a_fault_of_the_world():
    with pytest.raises(EnvironmentFault, match="the user's server http://127.0.0.1:9/v1 failed"):
        play(EnvSpec.load("retail", {"user": "http://127.0.0.1:9/v1"}), TASKS[0], [])
