"""Inspect's evaluation logs: JSON files of a whole evaluation, and `.eval` archives of one JSON file a sample.

A sample is an episode: its id is the task, its epoch the attempt. Scores are `C` (correct), `I` (incorrect), `P`
(partial, 0.5) and `N` (no answer), truth values, or numbers; of several scorers the first one counts, unless
`log.outcome=NAME` names another.

Written as one JSON file of an evaluation (`inspect_ai` 0.3.285, `log/_log.py`), which Inspect scores anew and shows.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from io import BufferedIOBase
from pathlib import Path
from typing import Any, cast

from offline_agent import __version__, strict_json
from offline_agent.errors import DataError
from offline_agent.formats.row import PLAYED, Export, ExportRow, Part
from offline_agent.logs.conversation import conversation
from offline_agent.logs.episode import SPLITS, Fields, LoggedEpisode, at
from offline_agent.logs.files import Record
from offline_agent.messages import schemas, write
from offline_agent.store.files import WHOLE, blocks, check_unpacked

NAME = "inspect"
ARCHIVE = ".eval"

_VALUES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
_ZSTANDARD = 93  # of the zip specification; Python 3.11's zipfile cannot read it
_BY_BLOCKS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others unpack a whole block at once, of any size
_HEADERS = ("header.json", "_journal/start.json")  # the second is of an evaluation that did not end

_DAMAGED = (zipfile.BadZipFile, zlib.error, OSError, ValueError, RuntimeError)  # the last one is of what is encrypted


def recognised(record: Mapping[str, Any]) -> str | None:
    """See `formats.Format`."""
    if isinstance(record.get("eval"), Mapping) and isinstance(record.get("sample"), Mapping):
        return "an evaluation and its sample"
    return None


def parts(record: Record) -> Iterator[Record]:
    """Yield the samples of a whole evaluation, each with the evaluation's facts; another record as it is."""
    value = record.value
    if not (isinstance(value, Mapping) and isinstance(value.get("eval"), Mapping) and "samples" in value):
        yield record
        return
    for sample in value["samples"] or ():
        yield _part(record.name, value["eval"], sample)


def archive(path: Path) -> Iterator[Record]:
    """Yield the samples of an `.eval` archive.

    Raises:
        DataError: The archive cannot be opened, or unpacks to more than is allowed.
    """
    try:
        with zipfile.ZipFile(path) as file:
            names = file.namelist()
            check_unpacked(path, sum(entry.file_size for entry in file.infolist()), path.stat().st_size)
            header = next((name for name in _HEADERS if name in names), None)
            if header is None:
                raise DataError(f"{path}: it has none of {', '.join(_HEADERS)}, so it is no log of Inspect")
            evaluation = strict_json.loads(_content(file, header).decode()).get("eval", {})
            for name in names:
                if not name.startswith("samples/"):
                    continue
                try:
                    yield _part(str(path), evaluation, strict_json.loads(_content(file, name).decode()))
                except (*_DAMAGED, EOFError) as error:
                    yield Record(f"{path}:{name}", None, f"not readable as JSON ({error})")
    except (*_DAMAGED, AttributeError) as error:
        raise DataError(f"{path}: not readable as an archive of Inspect ({error})") from error


def _content(file: zipfile.ZipFile, name: str) -> bytes:
    entry = file.getinfo(name)
    check_unpacked(f"{file.filename}:{name}", entry.file_size, entry.compress_size, WHOLE)
    if entry.compress_type in _BY_BLOCKS:
        with file.open(entry) as stream:
            return b"".join(blocks(cast(BufferedIOBase, stream), f"{file.filename}:{name}", entry.compress_size, WHOLE))
    if entry.compress_type != _ZSTANDARD:
        raise ValueError(f"got compression method {entry.compress_type}, allowed: stored, deflated, zstandard")
    import pyarrow as pa

    assert file.fp is not None  # it is open
    file.fp.seek(entry.header_offset + 26)  # lengths of name and extra field, which stand before the content
    lengths = file.fp.read(4)
    file.fp.seek(sum(int.from_bytes(lengths[at : at + 2], "little") for at in (0, 2)), 1)
    packed = file.fp.read(entry.compress_size)
    try:
        return bytes(pa.Codec("zstd").decompress(packed, entry.file_size))
    except pa.ArrowException as error:
        raise ValueError(str(error)) from error


def _part(name: str, evaluation: Any, sample: Any) -> Record:
    told = sample if isinstance(sample, Mapping) else {}
    return Record(f"{name}:{told.get('id')}/{told.get('epoch')}", {"eval": evaluation, "sample": sample})


def read(record: Mapping[str, Any], name: str, fields: Fields) -> Iterator[LoggedEpisode]:
    """See `formats.Format`."""
    evaluation, sample = record["eval"], record["sample"]
    if sample.get("error"):
        raise DataError(f"the sample ended in an error: {str(sample['error'].get('message'))[:100]!r}")
    score = _score(sample.get("scores") or {}, fields.outcome)
    task = f"{evaluation.get('task', '')}/{sample.get('id')}"
    metadata = {"target": sample.get("target"), **(sample.get("metadata") or {})}
    split = metadata["split"] if metadata.get("split") in SPLITS else None  # as `environment` of envs/serving has it
    told = {"task_id": task, "session_id": sample.get("uuid"), "split": sample.get("split") or split, **(score or {})}
    letter = _VALUES.get(told["score"]) if isinstance(told.get("score"), str) else None
    changes: dict[str, Any] = {"outcome": "score", "task": None, "session": None}
    if letter is not None:
        told["score"] = letter
        changes["range"] = (0.0, 1.0)
    known = fields.model_copy(update=changes).read({**metadata, **told})
    messages = conversation([_message(message) for message in sample.get("messages") or ()])
    yield LoggedEpisode(name, messages, schemas(_tools(sample)), **known)


def _score(scores: Mapping[str, Any], wanted: str | None) -> dict[str, Any] | None:
    """Return the score that counts; None where there is none."""
    if wanted is not None and scores and wanted not in scores:
        raise DataError(f"scores: there is no {wanted!r}; there are {', '.join(scores)}")
    chosen = scores.get(wanted) if wanted is not None else next(iter(scores.values()), None)
    value = at(chosen, "value")
    return None if value is None else {"score": value}


def _message(message: Any) -> Any:
    """Return a message in OpenAI's form: Inspect's calls have the function's name where OpenAI's have the function, and
    of a tool that failed the model reads the error.
    """
    if not isinstance(message, Mapping):
        return message
    out = {key: message[key] for key in ("role", "content", "tool_call_id") if key in message}
    if isinstance(message.get("tool_calls"), list):
        out["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    if isinstance(message.get("error"), Mapping):
        out["content"] = f"Error: {message['error'].get('message')}"
    return out


def _call(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    if call.get("parse_error"):
        raise DataError(f"a call of {call.get('function')}, whose arguments Inspect could not read, and nobody can now")
    return {"id": call.get("id"), "function": {"name": call.get("function"), "arguments": call.get("arguments")}}


def _tools(sample: Mapping[str, Any]) -> list[Any] | None:
    """Return the tools of the sample's first call of a model."""
    for event in sample.get("events") or ():
        if at(event, "event") == "model":
            tools = event.get("tools")
            return tools if isinstance(tools, list) else None
    return None


def head(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an `EvalLog` without its samples, of a run's manifest."""
    run, name = manifest["run_id"], (manifest.get("env") or {}).get("name", manifest["command"])
    evaluation = {
        "eval_id": run, "run_id": run, "task_id": run, "created": manifest["started"], "task": name,
        "dataset": {"name": name}, "config": {}, "packages": {"offline_agent": __version__},
        # a provider of Inspect that is never asked: `inspect score` opens the model that a log names
        "model": f"none/{(manifest.get('policy') or {}).get('model') or 'none'}",
    }  # fmt: skip
    stats = {"started_at": manifest["started"], "completed_at": manifest["ended"]}
    return {"version": 2, "status": "success", "eval": evaluation, "stats": stats}


def sample(row: ExportRow) -> Iterator[Mapping[str, Any]]:
    """Yield an episode as an `EvalSample`: `success` and `reward` are its scores, where it has a verdict."""
    facts, verdict = row.row, json.loads(row.row["verdict"] or "{}")
    names: dict[str, str] = {}  # of the calls, by id
    messages = [_written(message, names) for message in write(row.messages("messages", anew=True))]
    turns = [number for number, one in enumerate(messages) if one["role"] == "assistant"] or [len(messages)]
    told = {"metadata": {key: verdict.get(key) for key in ("verifier", "version", "evidence")}}
    values = {name: facts[name] for name in ("success", "reward") if facts[name] is not None}
    functions = [schema["function"] for schema in row.tools]
    keys = ("name", "description", "parameters")
    tools = [{"description": one["name"], **{key: one[key] for key in keys if key in one}} for one in functions]
    output = {"choices": [{"message": last, "stop_reason": "stop"} for last in messages[turns[-1] :][:1]]}
    yield {
        "id": facts["task_id"], "epoch": row.attempt, "input": messages[: turns[0]], "target": "", "messages": messages,
        "output": output, "scores": {name: {"value": float(value), **told} for name, value in values.items()},
        "metadata": {name: facts[name] for name in ("split", "origin", "terminated", "truncated")},
        "events": [{  # the tools stand nowhere else
            "event": "model", "model": "", "input": [], "tools": tools, "tool_choice": "auto", "config": {},
            "output": output,
        }],
    }  # fmt: skip


def _written(message: Mapping[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return a message of OpenAI's form in Inspect's."""
    out = {"content": "", **{key: message[key] for key in ("role", "content", "tool_call_id") if message.get(key)}}
    if reasoning := message.get("reasoning_content"):
        out["content"] = [{"type": "reasoning", "reasoning": reasoning}, {"type": "text", "text": out["content"]}]
    calls = message.get("tool_calls") or ()
    names |= {call["id"]: call["function"]["name"] for call in calls}
    if calls:
        out["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": call["function"]["name"],
             "arguments": json.loads(call["function"]["arguments"])}
            for call in calls
        ]  # fmt: skip
    if "tool_call_id" in out:
        out["function"] = names[out["tool_call_id"]]
    return out


EXPORT = Export(
    about="Inspect 0.3: an evaluation log, failures included, to be scored anew and looked at",
    parts=(Part("log.json", PLAYED, sample, head=head),),
    load="""\
```bash
inspect score log.json --scorer my_scorer.py@mine --action append --output-file scored.json
inspect view --log-dir .
```""",
    trains="Nothing: it is for evaluation, and may hold tasks of any split.",
    lost="Token ids, masks, log-probabilities and certificates; the tasks' arguments, so targets are empty.",
)
