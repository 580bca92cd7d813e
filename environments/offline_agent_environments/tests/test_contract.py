"""Every family passes the conformance suite and the audit's checks of rewards, leaks and data."""

import importlib.util
import sqlite3
from importlib import metadata

import pytest

from offline_agent import catalog
from offline_agent.envs.base import EnvSpec
from offline_agent.envs.conformance import check_environment
from offline_agent_environments.bfcl import data
from offline_agent_environments.browser import chromium
from offline_agent_environments.textworld import server
from tests.helpers.conformance import assert_as_trl_sees_it, assert_audited, assert_conforms
from tests.helpers.judges import assert_judges

needs_bfcl = pytest.mark.skipif(not data.installed(), reason=f"bfcl-eval is not installed ({data.INSTALL})")
needs_minigrid = pytest.mark.skipif(importlib.util.find_spec("minigrid") is None, reason="pip install minigrid")
needs_chromium = (
    pytest.mark.engines,
    pytest.mark.skipif(chromium.missing() is not None, reason=str(chromium.missing())),
)
needs_java = pytest.mark.skipif(server.missing() is not None, reason=str(server.missing()))

ENVIRONMENTS = [
    pytest.param("bfcl", {}, id="bfcl", marks=needs_bfcl),
    pytest.param("bfcl", {"categories": "miss_func,miss_param"}, id="bfcl-miss", marks=needs_bfcl),
    pytest.param("bfcl", {"categories": "long_context", "check": "benchmark"}, id="bfcl-long", marks=needs_bfcl),
    pytest.param("browser", {"level": "choose-list,enter-text"}, id="browser", marks=needs_chromium),
    pytest.param("browser", {"suite": "shop"}, id="browser-shop", marks=needs_chromium),
    pytest.param("code", {}, id="code", marks=pytest.mark.slow),
    pytest.param("repo", {}, id="repo", marks=pytest.mark.slow),
    pytest.param("textworld", {}, id="textworld", marks=needs_java),
    pytest.param("textworld", {"game": "twc,coin"}, id="textworld-twc-coin", marks=needs_java),
    pytest.param("babyai", {"level": "GoToLocal,UnlockLocal"}, id="babyai", marks=needs_minigrid),
    pytest.param("files_qa", {}, id="files_qa"),
    pytest.param("retail", {}, id="retail"),
    pytest.param("search_qa", {}, id="search_qa"),
    pytest.param("sql", {}, id="sql"),
    pytest.param("sql", {"writable": True}, id="sql-writable"),
    pytest.param("examples.detective:Detective", {}, id="detective"),
]
AUDITED = [one for one in ENVIRONMENTS if one.id == one.values[0]]


def test_the_whole_catalog_is_here():
    points = metadata.distribution(catalog.SHIPPED).entry_points
    names = {
        kind: {one.name + ":" * catalog.is_adapter(one) for one in points.select(group=group)}
        for kind, group in catalog.GROUPS.items()
    }
    assert names == {kind: set(some) for kind, some in catalog.ELSEWHERE.items()}
    assert {name for name in names["env"] if ":" not in name} <= {parameters.values[0] for parameters in ENVIRONMENTS}


def test_the_verifiers_keep_the_promises_of_one(tmp_path):
    sqlite3.connect(tmp_path / "d.sqlite").close()
    assert_judges("sql", ("select 2 - 1", "select 1", tmp_path / "d.sqlite"), "")
    fixed = ("+fixed", lambda patch: {"bug": "fixed" in patch, "rest": True}, ["bug"], ["rest"])
    assert_judges("repository_tests", fixed, "")


@pytest.mark.parametrize(("name", "args"), ENVIRONMENTS)
def test_environment(name, args):
    assert_conforms(name, args, tasks=1 if name == "browser" else 2)


@needs_bfcl
def test_an_isolated_one():
    report = check_environment(EnvSpec.load("bfcl", isolated=True), tasks=1)
    assert report.passed, f"\n{report}"


@pytest.mark.parametrize(("name", "args"), ENVIRONMENTS)
def test_trl_sees_the_same_schemas(name, args):
    assert_as_trl_sees_it(name, args)


@pytest.mark.parametrize(("name", "args"), AUDITED)
def test_the_audit_finds_nothing(name, args):
    assert_audited(name, args)
