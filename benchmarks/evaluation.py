"""
CPU time and peak memory of the evaluation on random embeddings clustered by class, compared with faiss and
pytorch-metric-learning. All run in turn in one process with one thread. Times are medians of time.process_time; memory
is what is used in addition to the embeddings.

OMP_NUM_THREADS=1 python -m benchmarks.evaluation [ranking] [rest] [scaling] [CUB] [Cars] [In-Shop] [SOP]
"""
import ctypes
import sys
import time
from pathlib import Path
from statistics import median

import faiss
import numpy as np
import torch

import evaluation
import parameters
from evaluation import clustering, geometry, neighbours, ranking

# name: images, classes, images of the largest class, queries (0: every image is a query, and all others its gallery)
SIZES = {'CUB': (5924, 100, 60, 0), 'Cars': (8131, 98, 97, 0), 'In-Shop': (26830, 3985, 30, 14218),
         'SOP': (60502, 11316, 12, 0), 'SOP/3': (20167, 3772, 12, 0)}
SHORT = ['precision_at_1', 'r_precision', 'map_at_r']
LONG = ['e_recall@1', 'e_recall@10', 'e_recall@100', 'e_recall@1000', 'r_precision', 'map_at_r', 'mAP_1000', 'mAP']


def embeddings(n, n_classes, largest, n_queries, dim):
    """[n, dim] float32 of norm 1 around random class centres, labels [n], and None or [n] bool: the queries."""
    random = np.random.default_rng(0)
    sizes = np.full(n_classes, 2)
    while sizes.sum() < n:
        free = random.permutation(np.flatnonzero(sizes < largest))[:n - sizes.sum()]
        sizes[free] += random.random(len(free)) < 0.5
    labels = random.permutation(np.repeat(np.arange(n_classes), sizes))
    centres, points = random.normal(size=(n_classes, dim)).astype(np.float32), np.empty((n, dim), np.float32)
    for start in range(0, n, 10_000):
        part = slice(start, min(start + 10_000, n))
        points[part] = centres[labels[part]] + 1.5 * random.normal(size=(part.stop - start, dim))
        points[part] /= np.linalg.norm(points[part], axis=1, keepdims=True)
    return torch.from_numpy(points), labels, np.arange(n) < n_queries if n_queries else None


def resident(what):
    """The memory of this process in MB, from Linux: VmRSS, the present one, or VmHWM, the peak since the last reset."""
    lines = Path('/proc/self/status').read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))


def measure(function):
    """(CPU seconds, peak MB minus the MB before the call)."""
    ctypes.CDLL(None).malloc_trim(0)                       # else memory freed before would not count when reused
    before = resident('VmRSS')
    Path('/proc/self/clear_refs').write_text('5')
    began = time.process_time()
    function()
    return time.process_time() - began, resident('VmHWM') - before


def interleaved(contenders, rounds):
    """{name: function} -> {name: (median CPU seconds, largest peak MB)}; every round calls each function once."""
    found = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, function in contenders.items():
            found[name].append(measure(function))
    return {name: (median(run[0] for run in runs), max(run[1] for run in runs)) for name, runs in found.items()}


def per_row(points, labels, queries):
    """The values of LONG for one query at a time, from its sorted distances."""
    for q in queries:
        order = np.argsort(((points[q] - points) ** 2).sum(axis=1), kind='stable')
        hits = (labels == labels[q])[order[order != q]]
        ranks = np.flatnonzero(hits) + 1
        precision = np.arange(1, len(ranks) + 1) / ranks
        n = len(ranks)
        yield [*(ranks[0] <= k for k in (1, 10, 100, 1000)), (ranks <= n).mean(), precision[ranks <= n].sum() / n,
               precision[ranks <= 1000].sum() / min(n, 1000), precision.mean()]


def ranking_table():
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    calculator = AccuracyCalculator(('precision_at_1', 'r_precision', 'mean_average_precision_at_r'),
                                    k='max_bin_count', device=torch.device('cpu'))
    print('short: precision_at_1, r_precision, map_at_r. long: recall at 1, 10, 100, 1000, r_precision, map_at_r, '
          'mAP_1000, mAP.\nfaiss: only a flat search with k = max R. PML: AccuracyCalculator, k = max_bin_count. '
          'per row: long, extrapolated from 20 queries.')
    print(f'{"":<9}{"dim":>4}{"way":>7} | CPU seconds: {"faiss":>7}{"PML":>8}{"short":>8}{"long":>8}{"per row":>9} | '
          f'{"short/faiss":>11}{"PML/short":>10}{"long/faiss":>11} | MB: {"faiss":>6}{"PML":>7}{"short":>6}{"long":>6}')
    for name, size in ((name, SIZES[name]) for name in SIZES if name in sys.argv or not set(SIZES) & set(sys.argv)):
        for dim in (128, 512):
            points, labels, is_query = embeddings(*size, dim)
            array, gallery = points.numpy(), ~is_query if is_query is not None else slice(None)
            queries = is_query if is_query is not None else slice(None)
            k = int(np.bincount(labels[gallery]).max())

            def search(array=array, queries=queries, gallery=gallery, dim=dim, k=k):
                index = faiss.IndexFlatL2(dim)
                index.add(array[gallery])
                index.search(array[queries], k)

            def calculate(points=points, labels=labels, queries=queries, gallery=gallery):
                labels = torch.from_numpy(labels)
                if isinstance(queries, slice):
                    calculator.get_accuracy(points, labels)
                else:
                    calculator.get_accuracy(points[queries], labels[queries], points[gallery], labels[gallery],
                                            ref_includes_query=False)

            found = interleaved({'faiss': search, 'PML': calculate} | {
                way: lambda metrics=metrics: evaluation.compute(metrics, points, labels, is_query)  # noqa: B023
                for way, metrics in (('short', SHORT), ('long', LONG))}, 5 if len(points) < 50_000 else 2)
            rows = range(20)
            slow = measure(lambda: list(per_row(array, labels, rows)))[0] * len(labels) / 20      # noqa: B023
            seconds, peaks = ({way: pair[i] for way, pair in found.items()} for i in (0, 1))
            way = ranking.choose(neighbours.Search(points, labels, is_query), np.inf)
            print(f'{name:<9}{dim:>4}{way:>7} | {"":<12}{seconds["faiss"]:>8.2f}{seconds["PML"]:>8.2f}'
                  f'{seconds["short"]:>8.2f}{seconds["long"]:>8.2f}{slow:>9.0f} | '
                  f'{seconds["short"] / seconds["faiss"]:>11.2f}{seconds["PML"] / seconds["short"]:>10.2f}'
                  f'{seconds["long"] / seconds["faiss"]:>11.2f} | {"":<3} {peaks["faiss"]:>6.0f}{peaks["PML"]:>7.0f}'
                  f'{peaks["short"]:>6.0f}{peaks["long"]:>6.0f}', flush=True)


def rest_table():
    points, labels, _ = embeddings(*SIZES['SOP'], 128)
    array, k = points.numpy(), SIZES['SOP'][1]
    clusters = np.random.default_rng(0).permutation(labels)          # as many clusters as classes, of the same sizes
    spectrum = [f'rho_spectrum@{number}' for number in (0, -1, 1, 2, 10)]
    default = parameters.build().get_default('evaluation_metrics')

    def faiss_kmeans(assign):
        search = faiss.Kmeans(128, k, niter=clustering.N_ITERATIONS, seed=0, min_points_per_centroid=1,
                              max_points_per_centroid=len(array))
        search.train(array)
        if assign:
            search.assign(array)

    def slow_distances():
        unit = array / np.linalg.norm(array, axis=1, keepdims=True)
        groups = [unit[labels == c] for c in range(500)]
        [1 - (group @ group.T).mean() for group in groups]

    quick = interleaved({
        'f1, from clusters': lambda: clustering.f1(clustering.Contingency(labels, clusters)),
        'nmi, from clusters': lambda: clustering.nmi(clustering.Contingency(labels, clusters)),
        'ami, from clusters': lambda: clustering.ami(clustering.Contingency(labels, clusters)),
        'dists@intra, @inter, @intra_over_inter': lambda: evaluation.compute(
            ['dists@intra', 'dists@inter', 'dists@intra_over_inter'], points, labels),
        'five rho_spectrum': lambda: evaluation.compute(spectrum, points, labels),
        'numpy svd alone': lambda: np.linalg.svd(array, compute_uv=False),
        'intra of 500 classes, class by class': slow_distances,
        'singular values alone': lambda: geometry.singular_values(array)}, 7)
    long = interleaved({
        'ranks for the default metrics': lambda: evaluation.compute(
            [name for name in default if evaluation.parse(name)[1].needs == 'ranks'], points, labels),
        'faiss k-means, without assigning': lambda: faiss_kmeans(assign=False),
        'faiss k-means and assigning': lambda: faiss_kmeans(assign=True),
        'k-means here, which assigns': lambda: clustering.kmeans(points, k, 0),
        'the whole default list': lambda: evaluation.compute(default, points, labels)}, 1)
    print(f'SOP x 128{"":<32}{"CPU ms":>9}{"MB":>7}')
    for name, (seconds, peak) in (quick | long).items():
        print(f'{name:<41}{seconds * 1e3:>9.1f}{peak:>7.0f}', flush=True)
    ranks, kmeans, assigned, own, whole = (seconds for seconds, _ in long.values())
    print(f'k-means over faiss\'s with assigning: {own / assigned:.2f}; default list over ranks + one faiss k-means: '
          f'{whole / (ranks + kmeans):.2f}')


def scaling_table():
    print(f'{"images":>9}{"queries":>9}{"way":>8}{"CPU s":>8}{"ns per pair":>13}{"MB":>7}{"map_at_r":>10}')
    both = ('exact', 'approx')
    for n, n_classes, n_queries, ways in ((30_000, 5_500, 0, both), (60_000, 11_000, 0, both),
                                          (250_000, 46_000, 0, both), (1_000_000, 185_000, 1_000, ('exact',))):
        points, labels, is_query = embeddings(n, n_classes, 12, n_queries, 128)
        for way in ways:
            values = {}
            seconds, peak = measure(lambda: values.update(evaluation.compute(          # noqa: B023
                SHORT if way == 'approx' else LONG, points, labels, is_query, approximate=way == 'approx')))  # noqa: B023
            pairs = (n_queries or n) * (n - n_queries)
            print(f'{n:>9,}{n_queries or n:>9,}{way:>8}{seconds:>8.1f}{seconds / pairs * 1e9:>13.2f}{peak:>7.0f}'
                  f'{values["map_at_r"]:>10.4f}', flush=True)


def main():
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    print(f'torch {torch.__version__}, numpy {np.__version__}, faiss {faiss.__version__}, one thread')
    tables = {'ranking': ranking_table, 'rest': rest_table, 'scaling': scaling_table}
    for name in [name for name in tables if name in sys.argv] or tables:
        print()
        tables[name]()


if __name__ == '__main__':
    main()
