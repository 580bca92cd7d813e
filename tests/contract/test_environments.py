"""Every environment of the core, the examples, and a class that inherits nothing pass the conformance suite."""

import pytest

from offline_agent import catalog
from tests.helpers.conformance import assert_as_trl_sees_it, assert_audited, assert_conforms

ENVIRONMENTS = [
    pytest.param("shop", {}, id="shop"),
    pytest.param("countdown", {}, id="countdown"),
    pytest.param("math", {}, id="math", marks=pytest.mark.slow),
    pytest.param("examples.reach:Reach", {}, id="reach"),
    pytest.param("examples.orders:Orders", {}, id="orders"),
    pytest.param("examples.machines:Machines", {}, id="machines"),
    pytest.param("tests.helpers.hostile_environments:Honest", {}, id="foreign"),
]


def test_the_whole_catalog_is_here():
    assert set(catalog.ENVIRONMENTS) <= {parameters.values[0] for parameters in ENVIRONMENTS}


@pytest.mark.parametrize(("name", "args"), ENVIRONMENTS)
def test_environment(name, args):
    assert_conforms(name, args)


@pytest.mark.parametrize(("name", "args"), ENVIRONMENTS)
def test_trl_sees_the_same_schemas(name, args):
    assert_as_trl_sees_it(name, args)


@pytest.mark.parametrize(("name", "args"), [one for one in ENVIRONMENTS if one.values[0] in catalog.ENVIRONMENTS])
def test_the_audit_finds_nothing(name, args):
    assert_audited(name, args)
