import math

import pytest
import torch

from offline_agent.policies.hf.sampling import sample, uniforms


def logits(rows=6, words=37, seed=0):
    return torch.randn(rows, words, generator=torch.Generator().manual_seed(seed)) * 3


def test_uniforms_are_what_the_hash_says():
    # splitmix64 of seed 0: the first output of the reference generator started at the mixed state
    draws = uniforms([0, 0, 1, 2**63 - 1], [0, 1, 0, 63])
    assert ((draws >= 0) & (draws < 1)).all()
    assert len(set(draws.tolist())) == 4
    assert uniforms([7], [3])[0] == uniforms([1, 7], [9, 3])[1]
    first = 0xE220A8397B1DCDAF  # splitmix64's first output from seed 0 (published test vector)

    def mix(state):
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        return state ^ (state >> 31)

    golden = 0x9E3779B97F4A7C15
    assert mix(golden) == first
    assert draws[0] == (mix((first + golden) % 2**64) >> 11) * 2.0**-53
    assert draws[1] == (mix((first + 2 * golden) % 2**64) >> 11) * 2.0**-53


def test_uniforms_are_even_and_neighbours_unrelated():
    by_seed = uniforms(range(20000), [0] * 20000)
    by_position = uniforms([5] * 20000, range(20000))
    for draws in (by_seed, by_position):
        assert abs(draws.mean() - 0.5) < 0.01
        assert abs((draws < 0.1).mean() - 0.1) < 0.01
        shifted = (draws[1:] - 0.5) * (draws[:-1] - 0.5)
        assert abs(shifted.mean()) < 0.003


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampling_follows_the_distribution(temperature):
    row = logits(1, 9)
    count = 20000
    ids, _ = sample(row.expand(count, -1), range(count), [0] * count, [temperature] * count)
    wanted = torch.softmax(row[0] / temperature, -1)
    got = torch.bincount(torch.tensor(ids), minlength=9) / count
    assert (got - wanted).abs().max() < 0.015


def test_logps_are_of_temperature_one_and_the_chosen_id():
    rows = logits()
    ids, logps = sample(rows, range(6), [0] * 6, [0.3] * 6)
    wanted = torch.log_softmax(rows, -1)[range(6), ids]
    assert logps == pytest.approx(wanted.tolist(), abs=1e-5)


def test_zero_temperature_is_greedy_and_mixes_with_others():
    rows = logits()
    warm, _ = sample(rows, range(6), [0] * 6, [0.9] * 6)
    mixed, _ = sample(rows, range(6), [0] * 6, [0.0, 0.9, 0.0, 0.9, 0.0, 0.9])
    assert mixed[0::2] == rows.argmax(-1).tolist()[0::2]
    assert mixed[1::2] == warm[1::2]


def test_a_row_does_not_depend_on_the_others():
    for words in (31, 32, 37, 1999):
        rows = logits(50, words, words)
        together = sample(rows, range(50), range(50), [0.7] * 50)
        for i in range(50):
            assert sample(rows[i : i + 1], [i], [i], [0.7]) == ([together[0][i]], [together[1][i]])


def test_impossible_ids_are_never_drawn():
    rows = torch.full((2000, 5), float("-inf"))
    rows[:, 1] = rows[:, 3] = 0.0
    ids, logps = sample(rows, range(2000), [0] * 2000, [0.7] * 2000)
    assert set(ids) == {1, 3}
    assert logps[0] == pytest.approx(math.log(0.5))


def test_numbers_that_are_none_show():
    rows = torch.full((1, 5), float("nan"))
    assert math.isnan(sample(rows, [0], [0], [0.7])[1][0])
    assert math.isnan(sample(rows, [0], [0], [0.0])[1][0])


def test_tiny_temperatures_do_not_overflow():
    rows = logits() * 1000
    assert sample(rows, range(6), [0] * 6, [1e-6] * 6)[0] == rows.argmax(-1).tolist()
