"""Every environment of the catalog, the examples, and a class that inherits nothing pass the conformance suite."""

import importlib.util
import json

import pytest

from offline_agent import catalog
from offline_agent.envs.base import EnvSpec
from offline_agent.envs.bfcl import data
from offline_agent.envs.browser import chromium
from offline_agent.envs.conformance import check_environment
from offline_agent.envs.textworld import server

needs_bfcl = pytest.mark.skipif(not data.installed(), reason=f"bfcl-eval is not installed ({data.INSTALL})")
needs_minigrid = pytest.mark.skipif(importlib.util.find_spec("minigrid") is None, reason="pip install minigrid")
needs_chromium = pytest.mark.skipif(chromium.missing() is not None, reason=str(chromium.missing()))
needs_java = pytest.mark.skipif(server.missing() is not None, reason=str(server.missing()))

ENVIRONMENTS = [
    pytest.param("shop", {}, id="shop"),
    pytest.param("bfcl", {}, id="bfcl", marks=needs_bfcl),
    pytest.param("bfcl", {"categories": "miss_func,miss_param"}, id="bfcl-miss", marks=needs_bfcl),
    pytest.param("bfcl", {"categories": "long_context", "check": "benchmark"}, id="bfcl-long", marks=needs_bfcl),
    pytest.param("browser", {"level": "choose-list,enter-text"}, id="browser", marks=needs_chromium),
    pytest.param("browser", {"suite": "shop"}, id="browser-shop", marks=needs_chromium),
    pytest.param("code", {}, id="code", marks=pytest.mark.slow),
    pytest.param("math", {}, id="math", marks=pytest.mark.slow),
    pytest.param("repo", {}, id="repo", marks=pytest.mark.slow),
    pytest.param("repo", {"score": "similarity"}, id="repo-similarity", marks=pytest.mark.slow),
    pytest.param("textworld", {}, id="textworld", marks=needs_java),
    pytest.param("textworld", {"game": "twc,coin"}, id="textworld-twc-coin", marks=needs_java),
    pytest.param("babyai", {"level": "GoToLocal,UnlockLocal"}, id="babyai", marks=needs_minigrid),
    pytest.param("countdown", {}, id="countdown"),
    pytest.param("retail", {}, id="retail"),
    pytest.param("search_qa", {}, id="search_qa"),
    pytest.param("sql", {}, id="sql"),
    pytest.param("sql", {"writable": True}, id="sql-writable"),
    pytest.param("examples.reach:Reach", {}, id="reach"),
    pytest.param("examples.detective:Detective", {}, id="detective"),
    pytest.param("examples.orders:Orders", {}, id="orders"),
    pytest.param("examples.machines:Machines", {}, id="machines"),
    pytest.param("tests.helpers.hostile_environments:Honest", {}, id="foreign"),
]


def test_the_whole_catalog_is_here():
    assert set(catalog.ENVIRONMENTS) <= {parameters.values[0] for parameters in ENVIRONMENTS}


@pytest.mark.parametrize(("name", "args"), ENVIRONMENTS)
def test_environment(name, args):
    tasks = 1 if args == {"suite": "shop"} else 2  # each of its calls loads a page
    report = check_environment(EnvSpec.load(name, args), tasks=tasks)
    assert report.passed, f"\n{report}"


@pytest.mark.parametrize(("name", "args"), ENVIRONMENTS)
def test_trl_sees_the_same_schemas(name, args):
    """Listed and described as TRL does it: members of the class, bound methods, transformers' schemas."""
    import inspect

    from transformers.utils import get_json_schema

    spec = EnvSpec.load(name, args)
    instance = spec.cls(**spec.args)
    members = [n for n, _ in inspect.getmembers(type(instance), predicate=inspect.isfunction)]
    tools = [n for n in members if n not in ("reset", "get_reward") and not n.startswith("_")]
    assert [get_json_schema(getattr(instance, n)) for n in tools] == list(spec.tools.schemas)
    assert json.loads(json.dumps(spec.tools.schemas)) == list(spec.tools.schemas)
