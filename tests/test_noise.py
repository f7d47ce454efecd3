"""Noise: equal to a reference in Python integers, independent of batch and order, and Gumbel-distributed by several tests.

Statistical tests use fixed seeds, so their result never changes; each would reject true Gumbel noise for one in a million draws
of those seeds (FALSE_ALARM).
"""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from paceline import noise
from reference import gumbel as reference_gumbel, hash32

settings.register_profile("still", derandomize=True, deadline=None, max_examples=150, database=None)
settings.load_profile("still")

FALSE_ALARM = 1e-6
SIGMAS = 4.9
"""Two-sided: a normal variate leaves +-4.9 with probability 9.6e-7."""


def words(seed: int, position: int, count: int, first: int = 0) -> torch.Tensor:
    """int64 in [0, 2**32), in the order of the uniforms."""
    return noise.hashed(seed, position, torch.arange(first, first + count)).to(torch.int64) + 2**31


def uniforms(seed: int, position: int, count: int) -> torch.Tensor:
    return words(seed, position, count).double() / 2**32


def chi_square_fits(counts: torch.Tensor) -> bool:
    """Tests that all cells are equally likely."""
    expected = float(counts.sum()) / counts.numel()
    statistic = ((counts.double() - expected) ** 2 / expected).sum()
    freedom = torch.tensor((counts.numel() - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2)) > FALSE_ALARM


def uniform_fits(values: torch.Tensor) -> bool:
    """Kolmogorov-Smirnov test with the bound of Dvoretzky, Kiefer, Wolfowitz and Massart, valid at any size."""
    ordered, size = values.sort().values, values.numel()
    steps = torch.arange(size, dtype=torch.float64)
    distance = max(float((ordered - steps / size).max()), float(((steps + 1) / size - ordered).max()))
    return distance < math.sqrt(math.log(2 / FALSE_ALARM) / (2 * size))


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**24), st.integers(0, 2**31 - 1))
def test_the_tensor_hash_is_the_hash_in_plain_integers(seed: int, position: int, token: int) -> None:
    word = int(noise.hashed(seed, position, torch.tensor([token]))[0])
    assert word % 2**32 == hash32(seed, position, token)
    drawn = float(noise.gumbel(seed, position, torch.tensor([token]))[0])
    assert drawn == pytest.approx(reference_gumbel(seed, position, token), rel=2e-7, abs=1e-7)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**24))
def test_arrays_and_tensors_have_the_same_noise(seed: int, position: int) -> None:
    """Both backends compute identical hashes; their logarithms may differ in the last bit of float64, which float32 hides."""
    tokens = np.concatenate([np.arange(99), np.array([2**17, 2**31 - 1])])
    for ids in (tokens, tokens.astype(np.int32)):
        assert noise.hashed(seed, position, ids).dtype == np.int32
        assert noise.hashed(seed, position, ids).tolist() == noise.hashed(seed, position, torch.from_numpy(ids)).tolist()
        assert noise.gumbel(seed, position, ids).dtype == np.float32
        assert noise.gumbel(seed, position, ids).tolist() == noise.gumbel(seed, position, torch.from_numpy(ids)).tolist()


def test_the_noise_is_pinned_down_for_ever() -> None:
    """Seeds that users recorded must give the same text in every later version."""
    assert [hash32(0, 0, 0), hash32(1, 2, 3), hash32(2**64 - 1, 2**20, 2**31 - 1)] == PINNED
    got = [noise.hashed(s, p, torch.tensor([t])) for s, p, t in [(0, 0, 0), (1, 2, 3), (2**64 - 1, 2**20, 2**31 - 1)]]
    assert [int(word) % 2**32 for word in got] == PINNED


PINNED = [535004646, 580996177, 4147530954]


@given(st.permutations(list(range(40))), st.integers(1, 40))
def test_a_token_has_its_noise_whatever_tokens_stand_beside_it(order: list[int], size: int) -> None:
    whole = noise.gumbel(5, 9, torch.arange(40))
    subset = torch.tensor(order[:size])
    assert torch.equal(noise.gumbel(5, 9, subset), whole[subset])
    assert torch.equal(noise.gumbel(5, 9, subset.to(torch.int32).view(-1, 1))[:, 0], whole[subset])


def test_no_two_tokens_of_a_position_share_a_hash() -> None:
    assert words(3, 4, 200_000).unique().numel() == 200_000


def test_every_byte_of_the_hash_is_uniform_over_tokens_positions_and_seeds() -> None:
    over_tokens = words(11, 12, 100_000)
    over_positions = torch.cat([words(11, position, 8) for position in range(3_000)])
    over_seeds = torch.cat([words(seed, 12, 8) for seed in range(3_000)])
    for sample in (over_tokens, over_positions, over_seeds):
        for shift in (0, 8, 16, 24):
            assert chi_square_fits(torch.bincount((sample >> shift) & 255, minlength=256))


def test_the_uniform_behind_the_noise_is_uniform() -> None:
    assert uniform_fits(uniforms(0, 0, 100_000))
    assert uniform_fits(torch.cat([uniforms(0, position, 1) for position in range(3_000)]))
    assert uniform_fits(torch.cat([uniforms(seed, 0, 1) for seed in range(3_000)]))


@pytest.mark.parametrize("apart", [1, 2, 64])
def test_neighbours_are_uncorrelated_across_tokens_positions_and_seeds(apart: int) -> None:
    """A 16 x 16 table of pairs: any dependence of the leading bits shows, not only a linear one."""
    pairs = {
        "tokens": (words(7, 7, 60_000), words(7, 7, 60_000, first=apart)),
        "positions": tuple(torch.cat([words(7, p + shift, 16) for p in range(800)]) for shift in (0, apart)),
        "seeds": tuple(torch.cat([words(s + shift, 7, 16) for s in range(800)]) for shift in (0, apart)),
    }
    for one, other in pairs.values():
        assert chi_square_fits(torch.bincount((one >> 28) * 16 + (other >> 28), minlength=256))
        # and the low bits, where a weak mixer shows first
        assert chi_square_fits(torch.bincount((one & 15) * 16 + (other & 15), minlength=256))


def test_a_seed_is_not_a_shifted_position() -> None:
    """If the key were the sum of both, seed 1 would repeat seed 0 one position later."""
    for shift in (1, 2):
        assert noise.key(shift, 5) != noise.key(0, 5 + shift)
    keys = {noise.key(seed, position) for seed in range(300) for position in range(300)}
    assert len(keys) == 300 * 300


def test_the_noise_has_the_mean_and_variance_of_gumbel() -> None:
    drawn = noise.gumbel(1, 2, torch.arange(400_000)).double()
    size, euler = drawn.numel(), 0.5772156649015329
    variance = math.pi**2 / 6
    assert abs(float(drawn.mean()) - euler) < SIGMAS * math.sqrt(variance / size)
    # the fourth central moment of a Gumbel is 5.4 times the squared variance
    assert abs(float(drawn.var()) - variance) < SIGMAS * variance * math.sqrt(4.4 / size)


def test_the_largest_of_noised_scores_is_drawn_from_their_softmax() -> None:
    """Chi-square with 4 degrees of freedom, n = 6,000."""
    scores = torch.tensor([0.0, 1.0, -1.0, 0.5, -torch.inf, 2.0])
    drawn = torch.tensor([noise.noised_best(scores, seed, 3)[0] for seed in range(6_000)])
    expected = scores.double().softmax(-1) * drawn.numel()
    counts = torch.bincount(drawn, minlength=6)
    assert counts[4] == 0
    kept = expected > 0
    statistic = ((counts - expected) ** 2 / expected)[kept].sum()
    assert float(torch.special.gammaincc(torch.tensor(2.0).double(), statistic / 2)) > FALSE_ALARM


def match_rate(target: torch.Tensor, draft: torch.Tensor) -> float:
    """How often two distributions choose the same token with the same noise; float64 [V] each, all above 0. Daliri et al.,
    Coupling without Communication and Drafter-Invariant Speculative Decoding (arXiv:2408.07978)."""
    larger = torch.maximum(target[None] / target[:, None], draft[None] / draft[:, None])
    return float((1.0 / larger.sum(-1)).sum())


@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0)), min_size=1, max_size=6))
def test_the_match_rate_of_shared_noise_lies_within_its_bounds(pairs: list[tuple[float, float]]) -> None:
    weights = torch.tensor(pairs, dtype=torch.float64)
    target, draft = (weights / weights.sum(0)).T
    apart = float((target - draft).abs().sum()) / 2
    assert (1 - apart) / (1 + apart) - 1e-12 <= match_rate(target, draft) <= 1 - apart + 1e-12


def test_target_and_draft_choose_alike_as_often_as_the_formula_says() -> None:
    """4,000 seeds, two-sided by the normal approximation."""
    target, draft = torch.tensor([0.5, 0.3, 0.1, 0.1]).double(), torch.tensor([0.2, 0.3, 0.4, 0.1]).double()
    size, rate = 4_000, match_rate(target, draft)
    alike = sum(
        noise.noised_best(target.log().float(), seed, 5)[0] == noise.noised_best(draft.log().float(), seed, 5)[0]
        for seed in range(size)
    )
    assert abs(alike - size * rate) < SIGMAS * math.sqrt(size * rate * (1 - rate))


def with_hash(monkeypatch: pytest.MonkeyPatch, word: int) -> float:
    """The noise of a token whose signed hash is `word`."""
    monkeypatch.setattr(noise, "hashed", lambda seed, position, tokens: torch.full_like(tokens, word, dtype=torch.int32))
    return float(noise.gumbel(0, 0, torch.tensor([0])))


def test_no_noise_exceeds_the_bound_and_none_is_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    largest, smallest = with_hash(monkeypatch, 2**31 - 1), with_hash(monkeypatch, -(2**31))
    assert largest == pytest.approx(-math.log(-math.log1p(-(2.0**-33))), abs=1e-5)
    assert 22.8 < largest < noise.LARGEST_GUMBEL
    assert smallest == pytest.approx(-math.log(33 * math.log(2)), abs=1e-6)


def test_a_hash_below_the_ordinary_bound_brings_less_than_the_ordinary_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    share = float((words(1, 1, 640_000) - 2**31 >= noise.ORDINARY_HASH).double().mean())
    assert abs(share - 1 / 64) < SIGMAS * math.sqrt(1 / 64 / 640_000)
    below, at = with_hash(monkeypatch, noise.ORDINARY_HASH - 1), with_hash(monkeypatch, noise.ORDINARY_HASH)
    assert below < noise.ORDINARY
    assert at > noise.ORDINARY - 0.02


def shapes(size: int) -> dict[str, torch.Tensor]:
    """Score rows of many kinds."""
    random = torch.randn(size, generator=torch.Generator().manual_seed(size))
    peaked = random.clone()
    peaked[size // 3] = 30.0
    sparse = random.masked_fill(torch.arange(size) % 7 != 3, -torch.inf)
    alone = torch.full((size,), -torch.inf)
    alone[size - 1] = 2.0
    return {
        "flat": torch.zeros(size),
        "nearly flat": random * 0.1,
        "random": random,
        "wide": random * 4,
        "peaked": peaked,
        "mostly banned": sparse,
        "one left": alone,
        "far from zero": random.round(decimals=1) + 1e4,
        "steps": (random * 4).round() - 3e6,
        "two levels": torch.where(torch.arange(size) % 1000 == 0, 0.0, -noise.ORDINARY),
        "one in a thousand": random.masked_fill(torch.arange(size) % 1000 != 3, -torch.inf),
        "deep levels": torch.where(torch.arange(size) % 1000 == 0, 0.0, -11.0),
    }


@pytest.mark.parametrize("size", [50, 5_000, 40_000, 152_000])
def test_the_shortcut_finds_what_full_evaluation_finds(size: int) -> None:
    counts = (1, 2, 5, 40) if size < 40_000 else (1, 5, 100)
    for name, scores in shapes(size).items():
        for position, count in enumerate(counts):
            full = scores.double() + noise.gumbel(99, position, torch.arange(size))
            wanted = [t for t in full.topk(count).indices.tolist() if full[t] > -torch.inf]
            assert noise.noised_best(scores, 99, position, count) == wanted, (name, count)


@pytest.mark.parametrize("rare", [2**31 - 1, 2**31 - 2**26, 2**31 - 2**26 - 1])
def test_the_shortcut_holds_where_one_token_draws_an_extreme_hash(monkeypatch: pytest.MonkeyPatch, rare: int) -> None:
    """The last token wins by its noise alone, from the largest distance that the noise can overcome."""
    true_hash, size = noise.hashed, 20_000
    last = size - 1

    def rigged(seed: int, position: int, tokens: torch.Tensor | np.ndarray) -> torch.Tensor | np.ndarray:
        # ordinary tokens get low hashes, the last one the extreme hash
        words = true_hash(seed, position, tokens) // 4 - 2**30
        words[tokens == last] = rare
        return words

    monkeypatch.setattr(noise, "hashed", rigged)
    others = float(noise.gumbel(0, 0, torch.arange(size - 1)).max())
    reach = float(noise.gumbel(0, 0, torch.tensor([last])))
    for margin in (1e-3, -1e-3):
        scores = torch.zeros(size)
        scores[last] = others - reach + margin
        full = scores.double() + noise.gumbel(0, 0, torch.arange(size))
        assert noise.noised_best(scores, 0, 0)[0] == int(full.argmax())
        assert (int(full.argmax()) == last) == (margin > 0)


def test_noised_best_returns_no_tokens_of_score_minus_infinity() -> None:
    for size in (50, 40_000):
        scores = torch.full((size,), -torch.inf)
        assert noise.noised_best(scores, 0, 0, 3) == []
        scores[7] = scores[size - 2] = 0.0
        assert sorted(noise.noised_best(scores, 0, 0, 3)) == [7, size - 2]


@pytest.mark.parametrize("size", [50, 40_003])
@pytest.mark.parametrize("place", [0, -1])
def test_noised_best_returns_nothing_where_a_score_is_not_a_number(size: int, place: int) -> None:
    scores = torch.zeros(size)
    scores[place] = torch.nan
    assert noise.noised_best(scores, 0, 0) == []


def test_noise_at_a_large_vocabulary_is_cheap() -> None:
    """A loose bound, for shared machines: only the shortcut takes a few milliseconds for a row of 152,000 tokens."""
    scores = torch.randn(152_000, generator=torch.Generator().manual_seed(0)) * 3
    noise.noised_best(scores, 0, 0)
    began = time.perf_counter()
    for position in range(10):
        noise.noised_best(scores, 0, position)
    assert (time.perf_counter() - began) / 10 < 0.05
