"""A folder in the shape of a tau2-bench checkout, with a package of its interface and a domain of our own."""

from __future__ import annotations

from pathlib import Path

_FILES = {
    "data_model/message.py": '''
class Message:
    def __init__(self, role, content=None, tool_calls=None, **_):
        self.role, self.content, self.tool_calls = role, content, tool_calls

class AssistantMessage(Message): ...
class UserMessage(Message): ...

class ToolCall:
    def __init__(self, id, name, arguments, requestor="assistant"):
        self.id, self.name, self.arguments, self.requestor = id, name, arguments, requestor

class ToolMessage:
    def __init__(self, content, error):
        self.content, self.error = content, error
''',
    "environment/__init__.py": "",
    "evaluator/evaluator_communicate.py": '''
from types import SimpleNamespace
from tau2.data_model.message import AssistantMessage

class CommunicateEvaluator:
    @classmethod
    def evaluate_communicate_info(cls, messages, facts):
        said = [m.content or "" for m in messages if isinstance(m, AssistantMessage)]
        return [SimpleNamespace(info=fact, met=any(fact in one for one in said)) for fact in facts]
''',
    "evaluator/evaluator_action.py": '''
from types import SimpleNamespace

class ActionEvaluator:
    @classmethod
    def evaluate_actions(cls, messages, wanted):
        made = [(c.name, c.arguments) for m in messages for c in m.tool_calls or ()]
        return [SimpleNamespace(action=a, action_match=(a.name, a.arguments) in made) for a in wanted]
''',
    "domains/desk/environment.py": '''
import json
from enum import Enum
from types import SimpleNamespace
from tau2.data_model.message import AssistantMessage, ToolMessage

class Part(str, Enum):
    DB = "DB"; ENV_ASSERTION = "ENV_ASSERTION"; COMMUNICATE = "COMMUNICATE"
    ACTION = "ACTION"; NL_ASSERTION = "NL_ASSERTION"

class Kit:
    writes = ()
    def __init__(self, db):
        self.db = db
    def has_tool(self, name):
        return name in self.schemas
    def tool_mutates_state(self, name):
        return name in self.writes
    def get_db_hash(self):
        return json.dumps(self.db, sort_keys=True)

def schema(name, about, **told):
    fields = {key: {"type": "string", "description": text} for key, text in told.items()}
    shape = {"type": "object", "properties": fields, "required": list(fields)}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": shape}}

class Tools(Kit):
    writes = ("close_note",)
    schemas = {
        "read_note": schema("read_note", "Read a note.", note="Its name, such as 'n1'."),
        "close_note": schema("close_note", "Close a note.", note="Its name, such as 'n1'."),
    }
    def read_note(self, note):
        return self.db["notes"][note]
    def close_note(self, note):
        if self.db["notes"][note]["state"] == "closed":
            raise ValueError("it is closed")
        self.db["notes"][note]["state"] = "closed"
        return "closed"
    def is_closed(self, note):
        if note not in self.db["notes"]:
            raise ValueError(f"no note {note}")
        return self.db["notes"][note]["state"] == "closed"

class Hands(Kit):
    writes = ("press",)
    schemas = {"press": schema("press", "Press a button.", button="its name"), "look": schema("look", "Look.")}
    def press(self, button):
        self.db["pressed"] = button
        return f"the light of {button} is on"
    def look(self):
        return f"the light of {self.db['pressed']} is on"
    def is_lit(self, button):
        if self.db["pressed"] is None:
            raise ValueError("no light is on")
        return self.db["pressed"] == button
    def has_pressed(self, button):
        return self.db["pressed"] == button

class Environment:
    def __init__(self):
        notes = {f"n{i}": {"state": "open", "code": str(1000 + i)} for i in range(1, 9)}
        self.tools, self.user_tools = Tools({"notes": notes}), Hands({"pressed": None})
    def get_policy(self):
        return "Close the notes that the user names."
    def get_tools(self):
        return [SimpleNamespace(name=n, openai_schema=s) for n, s in Tools.schemas.items()]
    def get_user_tools(self, include=None):
        return [SimpleNamespace(name=n, openai_schema=s) for n, s in Hands.schemas.items()
                if include is None or n in include]
    def get_db_hash(self):
        return self.tools.get_db_hash()
    def set_state(self, initialization_data, initialization_actions, message_history):
        for action in initialization_actions or ():
            getattr(self.user_tools, action["func_name"])(**action["arguments"])
    def make_tool_call(self, tool_name, requestor="assistant", **arguments):
        return getattr(self.tools if requestor == "assistant" else self.user_tools, tool_name)(**arguments)
    def get_response(self, call):
        try:
            told, error = self.make_tool_call(call.name, requestor=call.requestor, **call.arguments), False
        except Exception as fault:
            told, error = f"Error: {fault}", True
        return ToolMessage(told if isinstance(told, str) else json.dumps(told), error)
    def run_env_assertion(self, one, raise_assertion_error=True):
        kit = self.tools if one.env_type == "assistant" else self.user_tools
        return getattr(kit, one.func_name)(**one.arguments) == one.assert_value

def get_environment(db=None, solo_mode=False, colour="grey"):
    return Environment()

def action(name, requestor="assistant", **arguments):
    told = f"{name}({arguments})"
    return SimpleNamespace(name=name, requestor=requestor, arguments=arguments, get_func_format=lambda: told)

def asserted(func_name, env_type="assistant", **arguments):
    return SimpleNamespace(func_name=func_name, env_type=env_type, arguments=arguments, assert_value=True)

def task(id, wish, basis, actions=None, assertions=None, facts=None, judged=None, state=None, hands=None):
    criteria = SimpleNamespace(
        actions=actions, env_assertions=assertions, communicate_info=facts, nl_assertions=judged,
        reward_basis=[Part(one) for one in basis])
    if state is not None:
        state = SimpleNamespace(initialization_data=None, initialization_actions=state[0], message_history=state[1])
    return SimpleNamespace(
        id=id, user_scenario=SimpleNamespace(instructions=wish), initial_state=state, evaluation_criteria=criteria,
        user_tools=hands, model_dump=lambda **_: [id, wish, list(basis)])

def get_tasks(task_split_name=None):
    made = [
        task("told", "Which code has n1?", ["COMMUNICATE", "DB"], [action("read_note", note="n1")], facts=["1001"]),
        task("pressed", "My light is off.", ["ENV_ASSERTION"], [action("press", "user", button="red")],
             [asserted("has_pressed", "user", button="red")]),
        task("lit", "My light is off.", ["ENV_ASSERTION"], [action("press", "user", button="red")],
             [asserted("is_lit", "user", button="red")]),
        task("called", "Read n2 to me.", ["ACTION"], [action("read_note", note="n2")]),
        task("missing", "Close n9.", ["DB", "ENV_ASSERTION"], [], [asserted("is_closed", note="n9")]),
        task("polite", "Be polite.", ["DB", "COMMUNICATE"], judged=["The agent is polite"]),
        task("begun", "And now n3.", ["DB", "NL_ASSERTION"], [action("close_note", note="n3")], judged=["It is kind"],
             state=([{"func_name": "press", "arguments": {"button": "blue"}}],
                    [AssistantMessage("assistant", "I have closed n2.")])),
    ]
    made += [task(f"close-{i}", f"Close n{i}.", ["DB"], [action("close_note", note=f"n{i}")]) for i in range(1, 9)]
    return [one for one in made if task_split_name is None or one.id in get_tasks_split()[task_split_name]]

def get_tasks_split():
    tests = ["close-7", "close-8"]
    train = [f"close-{i}" for i in range(1, 7)] + ["told", "pressed", "lit", "called", "begun", "polite"]
    return {"train": train, "test": tests, "small": ["close-1", "close-2", "close-3", "told"]}
''',
}


def checkout(folder: Path) -> Path:
    """Write the folder; return it."""
    for name, text in _FILES.items():
        path = folder / "src" / "tau2" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder
