"""The criteria of the embedding-aware samplers, each against a brute force, and that the selection meets them."""
import math

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from scipy.stats import multivariate_normal, wasserstein_distance

from datasampler.d2_coreset_sampler import d2_coreset
from datasampler.disthist_batchmatch_sampler import distance_histogram_costs
from datasampler.fid_batchmatch_sampler import frechet_distances, seed_of_epoch
from datasampler.greedy_coreset_sampler import greedy_k_centre
from tests.helpers import images_of, sampler_of


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def case(n, dim, n_candidates, size, scale=1.0, seed=0):
    """Points of unequal spread, and candidates among them."""
    generator = seeded(seed)
    points = torch.randn(n, dim, generator=generator) @ torch.randn(dim, dim, generator=generator) / dim ** .5 * scale
    return points, torch.stack([torch.randperm(n, generator=generator)[:size] for _ in range(n_candidates)])


def slow_frechet(points, chosen):
    a, b = points.double().numpy(), points[chosen].double().numpy()
    s, t = np.atleast_2d(np.cov(a.T)), np.atleast_2d(np.cov(b.T))
    jitter = 1e-12 * np.eye(len(s))
    return ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(s + t - 2 * sqrtm((s + jitter) @ (t + jitter)).real)


def slow_disthist(points, chosen):
    def pairs(x):
        return np.array([np.sqrt(((x[i] - x[j]) ** 2).sum()) for i in range(len(x)) for j in range(i)])

    a, b = points.double().numpy(), points[chosen].double().numpy()
    edges = np.linspace(pairs(a).min(), pairs(a).max(), 51)
    centres = (edges[1:] + edges[:-1]) / 2
    histograms = [np.histogram(pairs(x), bins=edges)[0] for x in (a, b)]
    moved = wasserstein_distance(centres, centres, *histograms)
    return np.linalg.norm(a.mean(0) - b.mean(0)) + np.linalg.norm(a.std(0) - b.std(0)) + 75 * moved


@pytest.mark.parametrize('n, dim, size, scale', [(40, 5, 12, 1), (40, 30, 12, 1), (30, 60, 10, 1), (64, 16, 16, .05),
                                                 (20, 1, 6, 3)])
def test_frechet_distance(n, dim, size, scale):
    points, candidates = case(n, dim, 6, size, scale)
    expected = [slow_frechet(points, chosen) for chosen in candidates]
    np.testing.assert_allclose(frechet_distances(points, candidates), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize('n, dim, size, scale', [(25, 4, 8, 1.), (30, 20, 10, .1)])
def test_distance_histogram_cost(n, dim, size, scale):
    points, candidates = case(n, dim, 5, size, scale)
    expected = [slow_disthist(points, chosen) for chosen in candidates]
    np.testing.assert_allclose(distance_histogram_costs(points, candidates), expected, rtol=1e-4)


def test_equal_points_cost_nothing():
    for costs in (frechet_distances, distance_histogram_costs):
        assert costs(torch.ones(30, 8), torch.arange(9)[None]).abs().max() < 1e-6


@pytest.mark.parametrize('sizes', [[6] * 20, [2, 3] * 40], ids=['few classes', 'many classes'])
@pytest.mark.parametrize('name, slow', [('fid_batchmatch', slow_frechet), ('disthist_batchmatch', slow_disthist)])
def test_the_chosen_batch_costs_no_more_than_any_candidate(name, slow, sizes, opt):
    flags = opt(data_sampler=name, bs=16, samples_per_class=2, data_batchmatch_bigbs=50, data_batchmatch_ncomps=7,
                embed_dim=6, iterations_per_epoch=5, seed=3)
    images = images_of(sizes)
    sampler = sampler_of(flags, images)
    generator, excess = seeded(seed_of_epoch(3, 0)), []
    for batch in sampler:                                                 # the same draws, one batch at a time
        drawn, candidates = sampler.big_batch(generator), sampler.candidates(generator)
        points = sampler.storage[drawn]
        costs = [slow(points, places) for places in candidates]
        assert batch == drawn[candidates[int(np.argmin(costs))]].tolist()
        excess.append(np.mean(costs) / min(costs))
    assert np.mean(excess) > 1.1                                          # it made a difference


@pytest.mark.parametrize('sizes', [[6] * 20, [2, 3] * 40, [1, 9, 4]], ids=str)
def test_big_batches_are_spread_over_the_classes_and_candidates_are_of_them(sizes, opt):
    flags = opt(data_sampler='fid_batchmatch', bs=6, samples_per_class=2, data_batchmatch_bigbs=50,
                data_batchmatch_ncomps=8)
    images, generator = images_of(sizes), seeded()
    sampler = sampler_of(flags, images)
    labels = torch.tensor([label for _, label in images.image_list])
    counts = torch.zeros(len(sizes))
    for _ in range(100):
        drawn, candidates = sampler.big_batch(generator), sampler.candidates(generator)
        groups = labels[drawn].view(25, 2)
        assert (groups[:, 0] == groups[:, 1]).all()
        per_class = groups[:, 0].bincount(minlength=len(sizes))
        assert per_class.max() - per_class.min() <= 1
        for label, size in enumerate(sizes):
            assert len(set(drawn[labels[drawn] == label].tolist())) == min(size, 2 * int(per_class[label]))
        assert candidates.shape == (8, 6)
        for places in candidates.tolist():
            assert len(set(places)) == 6 and len(set(labels[drawn[places]].tolist())) == 3
        counts += labels[drawn[candidates]].flatten().bincount(minlength=len(sizes))
    expected = float(counts.sum()) / len(sizes)
    assert (counts - expected).abs().max() < 6 * (2 * expected) ** .5     # classes alike; they come in twos


def slow_k_centre(points, first, k):
    chosen = [first]
    while len(chosen) < k:
        free = [i for i in range(len(points)) if i not in chosen]
        chosen.append(max(free, key=lambda i: min(math.dist(points[i], points[j]) for j in chosen)))
    return chosen


@pytest.mark.parametrize('n, dim, k', [(30, 3, 8), (20, 16, 20), (5, 2, 1)])
def test_greedy_k_centre(n, dim, k):
    firsts = set()
    for seed in range(10):
        points, _ = case(n, dim, 1, 2, seed=seed)
        chosen = greedy_k_centre(points, k, seeded(seed)).tolist()
        assert chosen == slow_k_centre(points.double().tolist(), chosen[0], k)
        firsts.add(chosen[0])
    assert len(firsts) > 2                                                # the first is random


def test_the_softened_greedy_coreset_takes_one_of_the_farthest():
    points, _ = case(200, 4, 1, 2)
    ranks = []
    for seed in range(20):
        chosen = greedy_k_centre(points, 10, seeded(seed), softened=True)
        assert len(set(chosen.tolist())) == 10
        for step in range(1, 10):
            gaps = torch.cdist(points, points[chosen[:step]]).min(dim=1).values
            ranks.append(int((gaps > gaps[chosen[step]] + 1e-6).sum()))
    assert set(ranks) == set(range(6))                                    # 3 percent of 200, each of them at times
    assert len(set(greedy_k_centre(points, 200, seeded(), softened=True).tolist())) == 200


def test_the_greedy_coreset_takes_covered_images_last_and_at_random():
    points = torch.arange(5.).repeat_interleave(8)[:, None].repeat(1, 3)  # 5 places, 8 images at each
    orders = [greedy_k_centre(points, 20, seeded(seed)).tolist() for seed in range(10)]
    for order in orders:
        assert {index // 8 for index in order[:5]} == set(range(5)) and len(set(order)) == 20
    assert len({tuple(order[5:]) for order in orders}) == 10
    wide = greedy_k_centre(points, 6, seeded(1), limit=1.8).tolist()      # distances are multiples of 1.73
    assert len({index // 8 for index in wide[:3]}) == 3 and min(
        abs(a // 8 - b // 8) for a in wide[:2] for b in wide[:2] if a != b) > 1


def spread(points):
    """The mean distance to the nearest other."""
    return float(torch.cdist(points, points).fill_diagonal_(torch.inf).min(dim=1).values.mean())


@pytest.mark.parametrize('per_class', [1, 2])
def test_a_greedy_coreset_is_spread_wider_than_random_images(per_class, opt):
    """The margin, a quarter, is one that none of 300 random selections reaches."""
    flags = opt(data_sampler='greedy_coreset', bs=32 * per_class, samples_per_class=per_class,
                data_batchmatch_bigbs=256)
    sampler = sampler_of(flags, images_of([20] * 30))
    points, generator = sampler.storage.embeddings, seeded()
    chosen = [spread(points[batch[::per_class]]) for batch in sampler]
    random = [spread(points[torch.randperm(600, generator=generator)[:32]]) for _ in range(300)]
    assert max(random) < 1.25 * np.mean(random) < min(chosen)


def test_the_flags_of_the_greedy_coreset_reach_its_function(opt):
    flags = opt(data_sampler='greedy_coreset', data_gc_softened=True, data_gc_coreset_lim=.5)
    assert sampler_of(flags, images_of([20] * 30)).choose.keywords == {'softened': True, 'limit': .5}


def slow_d2_weights(points, chosen, power):
    """The probability of each point to come next."""
    x = points.double().numpy()
    density = multivariate_normal.pdf(x, x.mean(0), np.cov(x.T))
    total = sum(((x - x[i]) ** 2).sum(axis=1) for i in chosen)
    weights = density * total ** power
    weights[chosen] = 0
    return weights / weights.sum()


def test_the_d2_coreset_draws_with_the_probabilities_of_its_definition():
    points, _ = case(7, 2, 1, 2, seed=1)
    generator, n_draws, power = seeded(), 4000, 3.
    draws = [d2_coreset(points, 3, generator, power).tolist() for _ in range(n_draws)]
    assert all(len(set(draw)) == 3 for draw in draws)

    def check(counts, probabilities):
        n = counts.sum()
        deviations = np.abs(counts - n * probabilities)
        assert (deviations <= 5 * np.sqrt(n * probabilities * (1 - probabilities)) + 1e-9).all()

    x = points.double().numpy()
    near = np.random.default_rng(0).multivariate_normal(x.mean(0), np.cov(x.T), 200_000)
    nearest = ((near[:, None] - x) ** 2).sum(axis=2).argmin(axis=1)
    check(np.bincount([draw[0] for draw in draws], minlength=7), np.bincount(nearest, minlength=7) / len(near))
    first = np.bincount([draw[0] for draw in draws]).argmax()
    second = np.array([draw[1] for draw in draws if draw[0] == first])
    check(np.bincount(second, minlength=7), slow_d2_weights(points, [first], power))
    usual = np.bincount(second).argmax()
    third = np.array([draw[2] for draw in draws if draw[:2] == [first, usual]])
    assert len(third) > 100
    check(np.bincount(third, minlength=7), slow_d2_weights(points, [first, usual], power))


def test_the_d2_coreset_spreads_with_lambda_and_bears_any_rank(opt):
    """In many dimensions its density prefers the middle; what the distances add is against that."""
    def chosen(power):
        flags = opt(data_sampler='d2_coreset', bs=32, samples_per_class=2, data_batchmatch_bigbs=256,
                    data_d2_coreset_lambda=power)
        sampler = sampler_of(flags, images_of([20] * 30))
        return np.mean([spread(sampler.storage.embeddings[batch[::2]]) for batch in sampler])

    points, generator = sampler_of(opt(data_sampler='d2_coreset'), images_of([20] * 30)).storage.embeddings, seeded()
    assert chosen(300.) > 1.15 * chosen(0.)
    assert chosen(1.) < np.mean([spread(points[torch.randperm(600, generator=generator)[:16]]) for _ in range(100)])
    for points in (torch.ones(20, 4), torch.randn(20, 64, generator=seeded()), torch.arange(20.)[:, None].repeat(1, 5)):
        assert len(set(d2_coreset(points, 20, seeded()).tolist())) == 20
