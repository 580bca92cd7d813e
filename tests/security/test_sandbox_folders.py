"""Folders of a sandbox call at places of their own: what a program can do with them, at each level with namespaces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from offline_agent.sandbox import Entry, Folder, Limits, Result, Sandbox, SandboxError
from offline_agent.sandbox.calls import place_fault
from tests.helpers.sandboxes import sandbox_at

pytestmark = pytest.mark.slow
TESTS = {"run.sh": Entry("file", 0o755, 10**18, b"echo tests\n")}


@pytest.fixture(scope="module", params=["bubblewrap", "namespaces"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    found = sandbox_at(request.param)
    yield found
    found.close()


def ran(
    sandbox: Sandbox, command: str, app: dict[str, Entry] | None = None, settle: float = 0.0, **limits: float
) -> Result:
    folders = {"/app": Folder(app or {}, kept=True), "/tests": Folder(TESTS, writable=False)}
    return sandbox.run(
        ["bash", "-c", command], folders=folders, cwd="/app", settle=settle,
        limits=Limits(processes=64, **limits),  # type: ignore[arg-type]
    )


def test_kept_folders_are_returned_as_they_are_and_no_call_sees_those_of_another(sandbox: Sandbox) -> None:
    app = {"old": Entry("file", 0o600, 10**18, b"as before"), "gone": Entry("file", 0o600, 10**18, b"")}
    done = ran(sandbox, "rm gone; mkdir -p deep/er; printf x > deep/er/new; chmod 700 old; ln -s /etc/passwd link", app)
    found = done.folders["/app"]
    assert sorted(found) == ["deep", "deep/er", "deep/er/new", "link", "old"] and list(done.folders) == ["/app"]
    assert found["old"] == Entry("file", 0o700, 10**18, app["old"].data) and found["old"].data is app["old"].data
    assert found["deep/er/new"].data == b"x" and found["link"].data == "/etc/passwd"
    assert app["gone"].data == b"" and ran(sandbox, "ls").stdout == ""
    assert sandbox.run(["ls", "-d", "/app", "/tests"]).stdout == ""


def test_nothing_but_writable_folders_can_be_written(sandbox: Sandbox) -> None:
    done = ran(
        sandbox,
        "for f in /tests/run.sh /tests/new /new /etc/passwd /usr/new /old/new; do (echo x >> $f) 2>/dev/null && echo"
        " wrote $f; done; chmod 777 /tests /tests/run.sh; mv /tests /t; rmdir /app; ls /old /proc/1/root; id -un",
    )
    assert done.stdout == "agent\n", done
    assert ran(sandbox, "bash /tests/run.sh; mount -o remount,rw /; umount /tests; bash /tests/run.sh").stdout == (
        "tests\ntests\n"
    )


def test_what_is_left_behind_is_counted_and_writes_no_more(sandbox: Sandbox) -> None:
    left = "(setsid bash -c 'while :; do echo 1 >> log; done' &) >/dev/null 2>&1; sleep 0.2; echo 1"
    done = ran(sandbox, left, settle=0.1)
    assert (done.status, done.left, done.stdout) == ("exited", 1, "1\n") and done.folders["/app"]["log"].data
    assert ran(sandbox, "(sleep 0.05 &) >/dev/null 2>&1", settle=20).left == 0


@pytest.mark.parametrize(
    "command",
    [
        "for n in 1 2 3; do truncate -s 7M gap$n; done",
        "truncate -s 7M gap; for n in $(seq 500); do echo > $n; done",  # a page each, when they are written again
        "name=$(printf 'a%.0s' $(seq 250)); for n in $(seq 30); do mkdir $name; cd $name; done",
    ],
)
def test_more_than_may_be_kept_is_told_and_not_returned(command: str, sandbox: Sandbox) -> None:
    done = ran(sandbox, command, disk_mb=8)
    assert (done.status, done.folders) == ("disk", {})
    assert ran(sandbox, "echo 1").stdout == "1\n"


def test_odd_files_and_names_are_left_out_or_returned_as_they_are(sandbox: Sandbox) -> None:
    name = "a\nb\udcff"
    done = ran(sandbox, "mkfifo pipe; touch $'a\\nb\\xff'; mkdir locked; touch locked/x; chmod 0 locked locked/x")
    assert sorted(done.folders["/app"]) == sorted([name, "locked", "locked/x"])
    assert ran(sandbox, "true", dict(done.folders["/app"])).folders == done.folders


def test_places_and_names_that_would_leave_a_folder_are_refused(sandbox: Sandbox) -> None:
    for place in ("/usr/local/x", "/etc", "/", "app", "/app/../etc", "/proc/1", "/sandbox", "/tmp/x"):
        assert place_fault(place), place
        with pytest.raises(ValueError):
            sandbox.run(["true"], folders={place: Folder()})
    for name in ("/x", "../x", "a/../../x", ""):
        with pytest.raises(ValueError):
            sandbox.run(["true"], folders={"/app": Folder({name: Entry("file", 0o600, 0, b"")})})
    with pytest.raises(ValueError):
        sandbox.run(["true"], folders={"/app": Folder(), "/app/in": Folder()})


def test_the_level_without_namespaces_refuses_folders() -> None:
    weak = Sandbox("limits")
    try:
        with pytest.raises(SandboxError, match="need namespaces"):
            weak.run(["true"], folders={"/app": Folder()})
    finally:
        weak.close()
