"""Tasks in Harbor's folder format: what is carried out, what is refused before anything runs, and rewards."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import Any

import pytest

from offline_agent.envs.base import EnvSpec
from offline_agent.envs.conformance import check_environment
from offline_agent.errors import ConfigError
from offline_agent.records import Action, ToolCall
from offline_agent.sandbox import Entry
from offline_agent_environments.adapters.harbor import dockerfile, expert, verifier
from offline_agent_environments.adapters.harbor import tasks as folders
from offline_agent_environments.adapters.harbor.workspace import BEGAN, Workspace, tree
from offline_agent_environments.adapters.tests.harbor_tasks import EXAMPLES, begun, loaded, run, written


def refusal(tmp_path: Path, files: dict[str, str | None], **args: Any) -> str:
    with pytest.raises(ConfigError) as error:
        spec = loaded(written(tmp_path / "the-task", files), **args)
        list(spec.tasks("train"))
    return str(error.value)


@pytest.mark.slow
def test_task_folders_pass_the_conformance_suite(tmp_path: Path) -> None:
    for split in ("train", "validation", "test"):
        written(tmp_path / split / f"task-{split}", {"instruction.md": f"Write the word right, for {split}.\n"})
    report = check_environment(loaded(tmp_path), tasks=1, max_steps=10)
    assert report.passed, report


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_solution_of_each_example_earns_1_and_its_start_0(split: str) -> None:
    spec = EnvSpec.load(f"harbor:{EXAMPLES}")
    for task in spec.tasks(split):
        episode, said = spec.open(), []
        episode.reset(task)
        assert episode.verdict().score == 0, task.task_id
        while not episode.terminated:
            assert spec.demonstrate is not None
            said.append(spec.demonstrate(task.args, said, random.Random(0), 0.0))
            function = said[-1]["tool_calls"][0]["function"]
            episode.step(Action("", call=ToolCall(function["name"], function["arguments"])))
        assert episode.verdict().score == 1, (task.task_id, episode.verdict())


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"task.toml": "version = "}, "task the-task: task.toml cannot be read"),
        ({"tests/test.sh": None}, "task the-task: tests/test.sh cannot be read: No such file"),
        ({"instruction.md": " \n"}, "instruction.md is empty"),
        ({"tests/test.sh": "apt-get update\n"}, "tests/test.sh, line 1: apt-get needs the network"),
        ({"tests/test.sh": "true &&\\\n  uvx pytest /tests\n"}, "tests/test.sh, line 2: uvx needs the network"),
        ({"task.toml": None, "task.yaml": "x: 1\n"}, "Terminal-Bench's first format"),
        ({"task.toml": "[verifier]\ntimeout_sec = 0\n"}, "verifier.timeout_sec: got 0"),
        ({"task.toml": "[verifier]\nenv = { KEY = '${KEY}' }\n"}, "variables of this machine are not passed on"),
        ({"task.toml": "[environment]\ngpus = 1\n"}, "environment.gpus"),
        ({"task.toml": "[[steps]]\nname = 'one'\n"}, "tasks of several steps"),
        ({"environment/docker-compose.yaml": "services:\n"}, "environment/docker-compose.yaml: containers"),
        ({"environment/Dockerfile": None}, "Dockerfile: there is none"),
        ({"environment/Dockerfile": "FROM example.org/team/world:2\n"}, "env.images=[example.org/team/world]"),
        ({"environment/Dockerfile": "FROM julia:1\n"}, "'julia', which is not installed"),
        ({"environment/Dockerfile": "FROM debian AS a\nFROM debian\n"}, "line 2: FROM debian: builds of several"),
        (
            {"environment/Dockerfile": "# begin\nFROM debian\n\nRUN mkdir x && \\\n    apt-get install -y jq\n"},
            "task the-task: environment/Dockerfile, line 4: RUN mkdir x &&     apt-get install -y jq: apt-get needs",
        ),
        ({"environment/Dockerfile": "FROM debian\nRUN python3 -m pip install x\n"}, "line 2: RUN python3 -m pip"),
        ({"environment/Dockerfile": "FROM debian\nCOPY --from=a x .\n"}, "--from is not carried out"),
        ({"environment/Dockerfile": "FROM debian\nCOPY ../x .\n"}, "leaves environment/"),
        ({"environment/Dockerfile": "FROM debian\nCOPY absent .\n"}, "there is no environment/absent"),
        ({"environment/Dockerfile": "FROM debian\nADD https://example.org/x .\n"}, "line 2: ADD https"),
        ({"environment/Dockerfile": "FROM debian\nCOPY begin.txt /usr/bin/\n"}, "/usr is of the system"),
        ({"environment/Dockerfile": "FROM debian\nCOPY begin.txt /tests/\n"}, "/tests is the verifier's"),
        ({"environment/Dockerfile": "FROM debian\nENTRYPOINT [\"x\"]\n"}, "line 2: ENTRYPOINT"),
        ({"environment/Dockerfile": "FROM debian\nUSER nobody\n"}, "line 2: USER nobody"),
        ({"environment/Dockerfile": "FROM debian\nENV LD_PRELOAD=/app/x.so\n"}, "LD_PRELOAD would change"),
        ({"environment/Dockerfile": "FROM debian\nWORKDIR /$ROOT/x\n"}, "the variable ROOT is not set"),
        ({"environment/Dockerfile": "FROM debian\nARG PYTHONHOME=/app\n"}, "PYTHONHOME would change"),
        ({"environment/Dockerfile": "FROM debian\nWORKDIR /\n"}, "line 2: WORKDIR /: / is of the system"),
        ({"task.toml": "[verifier]\ntimeout_sec = nan\n"}, "verifier.timeout_sec: got nan"),
        ({"task.toml": "[verifier]\ntimeout_sec = inf\n"}, "verifier.timeout_sec: got inf"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_by_name_and_line(
    files: dict[str, str | None], told: str, tmp_path: Path
) -> None:
    assert told in refusal(tmp_path, files)


@pytest.mark.slow
def test_a_command_of_the_dockerfile_that_fails_is_refused_with_what_it_said(tmp_path: Path) -> None:
    told = refusal(tmp_path, {"environment/Dockerfile": "FROM debian\nRUN echo set > /etc/world\n"})
    assert "line 2: RUN echo set > /etc/world: exit status 1" in told and "Read-only file system" in told


def test_all_faults_of_all_tasks_are_told_at_once_or_these_tasks_are_left_out(tmp_path: Path) -> None:
    written(tmp_path / "good")
    written(tmp_path / "bad", {"task.toml": "=", "tests/test.sh": None})
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path)
    assert len(error.value.faults) == 3 and "env.unplayable=leave_out" in error.value.faults[-1]
    assert list(loaded(tmp_path, unplayable="leave_out").cls._found) == ["good"]  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="allowed: refuse, leave_out"):
        loaded(tmp_path, unplayable="skip")


def test_a_folder_without_tasks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with pytest.raises(ConfigError, match="has no task; allowed: a folder with task.toml"):
        loaded(tmp_path)
    with pytest.raises(ConfigError, match="there is no such folder"):
        loaded(tmp_path / "absent")


def test_splits_are_by_mapping_or_folder_or_hash_and_never_overlap(tmp_path: Path) -> None:
    for number in range(40):
        written(tmp_path / f"task-{number:02}")
    tasks = folders.found(str(tmp_path))
    hashed = [folders.in_split(split, tasks, None) for split in ("train", "validation", "test")]
    assert sorted(sum(hashed, [])) == sorted(tasks) and len(hashed[0]) > 25 and hashed[1] and hashed[2]
    fewer = {name: place for name, place in tasks.items() if name != hashed[0][0]}
    assert folders.in_split("test", fewer, None) == hashed[2]  # another task moves none
    splits = {"train": ["task-0*"], "test": ["task-39"]}
    assert folders.in_split("train", tasks, splits) == [f"task-0{n}" for n in range(10)]
    assert folders.in_split("validation", tasks, splits) == []
    for wrong, told in (
        ({"train": ["task-0*"], "test": ["task-01"]}, "is in train and in test"), ({"train": ["absent"]}, "no task is"),
        ({"dev": ["task-01"]}, "allowed: lists of names"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=told):
            folders.in_split("train", tasks, wrong)
    own = folders.found(str(EXAMPLES))
    assert folders.in_split("test", own, None) == ["parse-durations"]


@pytest.mark.parametrize(
    ("files", "score", "told"),
    [
        ({"reward.txt": b" 0.25\n"}, 0.25, ""), ({"reward.json": b'{"reward": 1, "style": 0.5}'}, 1.0, ""),
        ({"reward.json": b"0.5"}, 0.5, ""), ({"reward.json": b'{"tests": 1}'}, 1.0, ""),
        ({"reward.txt": b"1", "reward.json": b'{"reward": 1.0}'}, 1.0, ""),
        ({"reward.txt": b"1", "reward.json": b"0"}, None, "two rewards"), ({}, None, "wrote neither"),
        ({"reward.txt": b""}, None, "got '', allowed: a number"), ({"reward.txt": b"passed"}, None, "got 'passed'"),
        ({"reward.txt": b"nan"}, None, "got nan"), ({"reward.txt": b"1.5"}, None, r"allowed: a reward in \[0, 1\]"),
        ({"reward.txt": b"\xff"}, None, "decode"), ({"reward.json": b"{"}, None, "reward.json"),
        ({"reward.json": b'{"a": 1, "b": 0}'}, None, "one that is called reward"),
        ({"reward.json": b'{"reward": true}'}, None, "got True"),
        ({"reward.json": b"1" + b"0" * 400}, None, "reward.json: int too large"),
    ],
)  # fmt: skip
def test_a_reward_is_a_number_in_0_to_1_or_there_is_none(
    files: dict[str, bytes], score: float | None, told: str
) -> None:
    found, error = verifier._reward({name: Entry("file", 0o644, BEGAN, data) for name, data in files.items()})
    assert found == score and re.search(told, error), (found, error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "toml", "told"),
    [
        ("exit 3\n", "", "wrote neither .* test.sh ended with status 3"),
        ("sleep 30; echo 1 > /logs/verifier/reward.txt\n", "[verifier]\ntimeout_sec = 1\n", "not done in its time"),
    ],
)
def test_a_verifier_that_fails_leaves_the_episode_unscored(script: str, toml: str, told: str, tmp_path: Path) -> None:
    verdict = begun(written(tmp_path / "task", {"tests/test.sh": script, "task.toml": toml + "#\n"})).verdict()
    assert verdict.score is None and re.search(told, str(verdict.error))


@pytest.mark.slow
def test_instructions_are_carried_out_in_order(tmp_path: Path) -> None:
    lines = """FROM --platform=linux/amd64 python:3.12-slim  # a comment is no part of it
ARG TOP=/data IN=in
ENV NAME="the name" MODE=test
WORKDIR $TOP/in
COPY begin.txt ./one.txt
COPY --chmod=0755 --chown=0:0 begin.txt folder/ /srv/
ADD ["begin.txt", "/app/"]
RUN echo "$NAME $IN $PWD" > made.txt && \\
    # between
    touch $HOME/mark
EXPOSE 80
CMD ["sleep", "infinity"]
""".replace("  # a comment is no part of it", "")
    files = {"environment/Dockerfile": lines, "environment/folder/deep/two.txt": "two\n"}
    episode = begun(written(tmp_path / "task", files))
    said = run(episode, "pwd; cat *.txt; ls -A /srv /srv/deep /app ~; stat -c %a /srv/begin.txt; echo $MODE$IN")
    assert said == (
        "/data/in\nthe name in /data/in\nbegin\n/agent:\nmark\n\n/app:\nbegin.txt\n\n/srv:\nbegin.txt\ndeep\n\n"
        "/srv/deep:\ntwo.txt\n755\ntest\n[exit status 0]"
    )


@pytest.mark.slow
def test_files_stay_between_commands_and_copies_are_apart(tmp_path: Path) -> None:
    episode = begun(written(tmp_path / "task"))
    run(episode, "mkdir -p a/empty; echo one > a/file; chmod 755 a/file; ln -s file a/link; echo t > /tmp/t")
    twin = episode.copy()
    assert run(twin, "rm -r a; ls") == "begin.txt\n[exit status 0]"
    listed = run(episode, "ls -lAR a; cat /tmp/t")
    assert listed == run(episode.copy(), "ls -lAR a; cat /tmp/t") and "agent agent" in listed and "file" in listed
    assert "-rwxr-xr-x" in listed and "link -> file" in listed and "empty" in listed and "2020" in listed
    assert twin.fingerprint() != episode.fingerprint()
    run(twin, "cp -r /tmp/t t"), run(twin, "rm t")
    assert twin.fingerprint() != begun(tmp_path / "task").fingerprint()  # /tmp is kept too
    assert run(twin, "rm /tmp/t") == "[exit status 0]" and twin.fingerprint() == begun(tmp_path / "task").fingerprint()


@pytest.mark.slow
def test_an_output_and_a_time_that_are_too_long_are_cut_and_told(tmp_path: Path) -> None:
    episode = begun(written(tmp_path / "task"), seconds=5)  # less than a call asks for where it names no time
    said = run(episode, "seq 10000")
    assert said.startswith("1\n2\n") and said.endswith("10000\n[exit status 0]")
    assert "[42894 characters left out]" in said and len(said) < 6100
    assert run(episode, "echo kept > x; sleep 20", timeout=1) == "[stopped after 1 s]"
    assert run(episode, "cat x") == "kept\n[exit status 0]"
    assert "allowed: 1 to 5 seconds" in run(episode, "true", timeout=0)


def test_solutions_are_parts_where_no_part_needs_the_shell_of_another(tmp_path: Path) -> None:
    def parts(script: str, **more: str) -> tuple[str, ...]:
        folder = written(tmp_path / str(random.random()), {"solution/solve.sh": script, **more})
        return expert.parts(folders.read(folder, frozenset()))

    head = "#!/bin/bash\nset -e\n# how\n\n"
    assert parts(f"{head}echo a\n\ncat > f <<'E'\nx\n\ny\nE\n\n# only a word\n\necho b\n") == (
        "echo a", "cat > f <<'E'\nx\n\ny\nE", "echo b",
    )  # fmt: skip
    for carried in ("cd sub", "export A=1", "name=1", "f() {\n  true\n}"):
        assert parts(f"{head}{carried}\n\necho b\n") == (f"{carried}\n\necho b",)
    (whole,) = parts("cp /solution/right.txt /app/\n", **{"solution/right.txt": "right\n"})
    assert "base64 -d > /tmp/solution/right.txt" in whole and whole.endswith("cp /tmp/solution/right.txt /app/")


def test_only_the_folder_of_the_solution_is_another_in_its_script_and_a_link_there_is_refused(tmp_path: Path) -> None:
    script = "cp /app/solution/a /solution/b '/solution/c' \"$X\"/solution/d ./solution/e; ls /solution /solution.txt\n"
    folder = written(tmp_path / "the-task", {"solution/solve.sh": script, "solution/b": "b\n"})
    (whole,) = expert.parts(folders.read(folder, frozenset()))
    assert whole.splitlines()[-1] == (
        "cp /app/solution/a /tmp/solution/b '/tmp/solution/c' \"$X\"/solution/d ./solution/e; "
        "ls /tmp/solution /solution.txt"
    )
    (folder / "solution" / "link").symlink_to("b")
    folders.read.cache_clear()
    with pytest.raises(ConfigError, match="task the-task: solution/link is a link"):
        folders.read(folder, frozenset())


@pytest.mark.parametrize("part", ["tests", "solution", "environment"])
def test_what_cannot_be_read_in_a_task_is_refused_by_name_and_path(part: str, tmp_path: Path) -> None:
    copied = {"environment/Dockerfile": "FROM debian\nWORKDIR /app\nCOPY . .\n"}
    folder = written(tmp_path / "the-task", copied)
    os.mkfifo(folder / part / "pipe")
    with pytest.raises(ConfigError, match=f"task the-task: .*{part}/pipe: it is no file, folder or link"):
        list(loaded(folder).tasks("train"))


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_empty(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        tree(tmp_path / "absent")


def test_links_to_names_that_are_no_utf_8_have_a_digest() -> None:
    targets = ("a\udcff", "a\udcfe")
    made = [Workspace({"/app": {"link": Entry("link", 0o777, BEGAN, target)}}) for target in targets]
    assert made[0].digest != made[1].digest


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"images": "debian"}, "env.images: got 'debian', allowed: a list"), ({"images": 3}, "env.images: got 3"),
        ({"splits": ["train"]}, "env.splits: got .*allowed: lists of names"),
        ({"splits": {"train": 3}}, "env.splits.train: got 3, allowed: a list"),
        ({"splits": {"train": [3]}}, "env.splits.train: got .*3.*, allowed: a list of names"),
    ],
)  # fmt: skip
def test_arguments_of_another_type_are_refused(args: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        loaded(written(tmp_path / "task"), **args)


def test_names_of_images_are_compared_without_tag_and_library() -> None:
    assert dockerfile.image_fault("docker.io/library/debian:12@sha256:00", ()) is None
    assert dockerfile.image_fault("localhost:5000/team/debian:1", ()) is not None
    assert dockerfile.image_fault("localhost:5000/team/debian:1", {"localhost:5000/team/debian"}) is None
