from offline_agent.envs.conformance import check


def test_it_passes_the_conformance_suite():
    assert check("ladder").passed
