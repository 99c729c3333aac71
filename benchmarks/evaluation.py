"""
CPU time and peak memory of the evaluation on random embeddings clustered by class, compared with faiss and
pytorch-metric-learning. All run in turn in one process with one thread. Times are medians of time.process_time; memory
does not include the embeddings.

OMP_NUM_THREADS=1 python -m benchmarks.evaluation [ranking] [sweep] [rest] [scaling] [recent] [--sizes CUB ...]
    [--recall 0.53] [--threads 2]
"""
import argparse
import itertools
import time
from statistics import median

import faiss
import numpy as np
import torch

import evaluation
import parameters
from benchmarks import Row
from benchmarks.embeddings import SIZES, embeddings
from benchmarks.measure import measure
from evaluation import clustering, geometry
from evaluation.ranking import neighbours, ranks
from utilities import pml

SHORT = ['precision_at_1', 'r_precision', 'map_at_r']
DEEP = ['e_recall@1', 'e_recall@10', 'e_recall@100', 'e_recall@1000', 'mAP_1000', 'mAP']
RECENT = [['mAP'], ['r_auroc'], ['h_ap'], ['asi'], ['ndcg'], ['h_ap', 'asi', 'ndcg'], ['tpr@0.001'], ['opis'],
          ['threshold_spread@0.01'], ['tpr@0.001', 'opis', 'threshold_spread@0.01']]
POSITIVES, RECALLS = (7, 14, 30, 60, 100, 300), (0.3, 0.5, 0.7, 0.9, 0.99)             # in the table sweep
# in the table scaling: images, classes, queries (0: all)
SCALES = [(30_000, 5_500, 0), (60_000, 11_000, 0), (250_000, 46_000, 0), (1_000_000, 185_000, 1_000)]
QUERIES = 5000               # queries for metrics of levels; times are scaled to all queries
WAYS = ('auto', 'count', 'sort')
NEIGHBOURS = 14              # of the faiss search: two more than the largest class of SOP has images
# Targets at RECALL, on the slower of two sets of embeddings, with equal and with unequal spread of the classes: the
# metrics of SHORT are so many times as fast as AccuracyCalculator; DEEP takes at most DEEP_TARGET faiss searches
SHORT_TARGETS = {'CUB': 1.5, 'Cars': 1.7, 'In-Shop': 1.8, 'SOP': 2.5, 'SOP/3': 2.5}
DEEP_TARGET, RECALL = 1.1, 0.53


def interleaved(contenders, rounds):
    """{name: function} -> {name: (median CPU seconds, largest peak MB)}; every round calls each function once."""
    found = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, function in contenders.items():
            found[name].append(measure(function))
    return {name: (median(run[0] for run in runs), max(run[1] for run in runs)) for name, runs in found.items()}


def contenders(points, labels, is_query):
    """
    {name: function}: `faiss`, a flat search of NEIGHBOURS neighbours; `PML`, pytorch-metric-learning's
    AccuracyCalculator for the metrics of SHORT; `short` and `deep`, this program's metrics of SHORT and DEEP.
    """
    pml.require_library('the comparison of evaluations')
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    calculator = AccuracyCalculator(('precision_at_1', 'r_precision', 'mean_average_precision_at_r'),
                                    k='max_bin_count', device=torch.device('cpu'))
    everyone = np.ones(len(labels), bool)
    queries, gallery = (everyone, everyone) if is_query is None else (is_query, ~is_query)

    def search():
        index = faiss.IndexFlatL2(points.shape[1])
        index.add(points.numpy()[gallery])
        index.search(points.numpy()[queries], NEIGHBOURS)

    def calculate():
        targets = torch.from_numpy(labels)
        reference = () if is_query is None else (points[gallery], targets[gallery], False)
        calculator.get_accuracy(points[queries], targets[queries], *reference)

    return {'faiss': search, 'PML': calculate,
            'short': lambda: evaluation.compute(SHORT, points, labels, is_query),
            'deep': lambda: evaluation.compute(DEEP, points, labels, is_query)}


def ranking_row(size, dim, recall, unequal, rounds):
    """(seconds, MB: {contender: number}; measured recall at 1; the ways that are chosen for short and deep)."""
    points, labels, is_query = embeddings(*size, dim, recall, unequal)
    search = neighbours.Search(points, labels, is_query)
    ways = [ranks.faster_way(search, depth) for depth in (search.n_positives, np.inf)]
    found = interleaved(contenders(points, labels, is_query), rounds)
    seconds, peaks = ({name: pair[i] for name, pair in found.items()} for i in (0, 1))
    measured = evaluation.compute(['precision_at_1'], points, labels, is_query)['precision_at_1']
    return seconds, peaks, measured, ways


def ranking_table(options):
    print(f'short: {", ".join(SHORT)}. deep: {", ".join(DEEP)}.\nfaiss: a flat search of {NEIGHBOURS} neighbours. '
          'PML: AccuracyCalculator, k = max_bin_count, for short.')
    print('| images x dim | spread | R@1 | ways: short, deep | faiss | PML | short | deep | PML / short | at least | '
          f'deep / faiss, at most {DEEP_TARGET} | MB: faiss / PML / short / deep |')
    for name, dim, unequal in itertools.product(options.sizes, options.dims, (False, True)):
        rounds = 5 if SIZES[name][0] < 50_000 else 2
        seconds, peaks, measured, ways = ranking_row(SIZES[name], dim, options.recall, unequal, rounds)
        times = ' | '.join(f'{seconds[way]:.2f}' for way in seconds)
        print(f'| {name} x {dim} | {("equal", "unequal")[unequal]} | {measured:.2f} | {", ".join(ways)} | {times} | '
              f'{seconds["PML"] / seconds["short"]:.2f} | {SHORT_TARGETS[name]} | '
              f'{seconds["deep"] / seconds["faiss"]:.2f} | {" / ".join(f"{peaks[way]:,.0f}" for way in peaks)} |',
              flush=True)


def sweep_points(n, positives, recalls, dim=128, rounds=3):
    """Yields (positives, measured recall at 1, metrics, chosen way, {way: CPU seconds}), for about n images."""
    for n_positives, recall in itertools.product(positives, recalls):
        n_classes = n // (n_positives + 1)
        points, labels, _ = embeddings(n_classes * (n_positives + 1), n_classes, n_positives + 2, 0, dim, recall)
        search = neighbours.Search(points, labels)
        measured = evaluation.compute(['precision_at_1'], points, labels)['precision_at_1']
        for metrics, depth in ((SHORT, search.n_positives), (DEEP, np.inf)):
            found = interleaved({way: lambda way=way: evaluation.compute(                      # noqa: B023
                metrics, points, labels, backend=way) for way in WAYS}, rounds)                # noqa: B023
            yield (n_positives, measured, 'short' if metrics is SHORT else 'deep', ranks.faster_way(search, depth),
                   {way: seconds for way, (seconds, _) in found.items()})


def sweep_table(options):
    print(f'about {options.images:,} images x 128; CPU seconds of each way, and of auto over the faster one')
    print(f'| positives | R@1 | metrics | chosen | {" | ".join(WAYS)} | auto / best |')
    ratios = []
    for n_positives, measured, metrics, chosen, seconds in sweep_points(options.images, POSITIVES, RECALLS):
        ratios.append(seconds['auto'] / min(seconds['count'], seconds['sort']))
        print(f'| {n_positives} | {measured:.2f} | {metrics} | {chosen} | '
              f'{" | ".join(f"{seconds[way]:.2f}" for way in WAYS)} | {ratios[-1]:.2f} |', flush=True)
    print(f'largest auto / best: {max(ratios):.2f}; median: {median(ratios):.2f}')


def rest_table(options):
    points, labels, _ = embeddings(*SIZES['SOP'], 128, options.recall)
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
        groups = [unit[labels == c] for c in range(min(500, k))]
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


def scaling_table(options):
    print(f'{"images":>9}{"queries":>9}{"CPU s":>8}{"ns per pair":>13}{"MB":>7}{"R@1":>7}')
    for n, n_classes, n_queries in SCALES:
        points, labels, is_query = embeddings(n, n_classes, 12, n_queries, 128, options.recall)
        values = {}
        seconds, peak = measure(lambda: values.update(evaluation.compute(DEEP, points, labels, is_query)))   # noqa: B023
        pairs = (n_queries or n) * (n - n_queries)
        print(f'{n:>9,}{n_queries or n:>9,}{seconds:>8.1f}{seconds / pairs * 1e9:>13.2f}{peak:>7.0f}'
              f'{values[DEEP[0]]:>7.3f}', flush=True)


def recent_table(options):
    torch.set_num_threads(options.threads)
    print(f'{options.threads} threads; 12 super-classes; metrics of levels: {QUERIES:,} queries, scaled to all')
    print('| images x dim | metrics | CPU s | wall s | MB |')
    for name in options.sizes:
        points, labels, is_query = embeddings(*SIZES[name], 128, options.recall)
        levels = np.random.default_rng(0).integers(0, 12, labels.max() + 1)[labels][:, None]
        everyone = np.ones(len(labels), bool)
        queries = everyone if is_query is None else is_query
        fewer = queries & (queries.cumsum() <= QUERIES)
        for metrics in RECENT:
            in_levels = evaluation.parse(metrics[0])[1].needs == 'levels'
            pool = evaluation.Pool(points, labels, is_query=fewer if in_levels else is_query,
                                   in_gallery=everyone if is_query is None else ~is_query, levels=levels)
            began = time.perf_counter()
            seconds, peak = measure(lambda: evaluation.compute(metrics, points, labels, pool=pool))    # noqa: B023
            scale = queries.sum() / fewer.sum() if in_levels else 1
            print(f'| {name} x 128 | {", ".join(metrics)} | {seconds * scale:.1f} | '
                  f'{(time.perf_counter() - began) * scale:.1f} | {peak:,.0f} |', flush=True)


def short():
    """
    CUB and a third of SOP: the targets of ranking, on the slower of the two sets of embeddings; and auto against the
    faster way.
    """
    one_thread()
    for name, rounds in (('CUB', 5), ('SOP/3', 3)):
        sets = [ranking_row(SIZES[name], 128, RECALL, unequal, rounds)[0] for unequal in (False, True)]
        job = f'metrics, {name} x 128, R@1 {RECALL}'
        yield Row(f'short {job}; AccuracyCalculator', *slower(sets, 'short', 'PML'), 1 / SHORT_TARGETS[name])
        yield Row(f'deep {job}; faiss search of {NEIGHBOURS}', *slower(sets, 'deep', 'faiss'), DEEP_TARGET)
    for n_positives, _, metrics, _, seconds in sweep_points(6000, (7, 60), (0.6,), rounds=9):
        yield Row(f'{metrics} metrics, {n_positives} positives, R@1 0.6; the faster way', seconds['auto'],
                  min(seconds['count'], seconds['sort']), 1.15)


def slower(sets, ours, peer):
    """The seconds (ours, peer) of the set of embeddings with the larger ratio ours / peer."""
    return max(((seconds[ours], seconds[peer]) for seconds in sets), key=lambda pair: pair[0] / pair[1])


def one_thread():
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)


def main():
    tables = {'ranking': ranking_table, 'sweep': sweep_table, 'rest': rest_table, 'scaling': scaling_table,
              'recent': recent_table}
    parser = argparse.ArgumentParser(prog='benchmarks.evaluation', description=__doc__)
    parser.add_argument('tables', nargs='*', choices=[*tables, []], metavar='TABLE',
                        help=f'tables to print, of {", ".join(tables)}; all by default')
    parser.add_argument('--sizes', nargs='+', choices=SIZES, default=list(SIZES),
                        help='data sets of the tables ranking and recent')
    parser.add_argument('--dims', nargs='+', type=int, default=[128, 512], help='dimensions in the ranking table')
    parser.add_argument('--recall', type=float, default=RECALL, help='recall at 1 of the embeddings, from 0.3 to 0.99')
    parser.add_argument('--images', type=int, default=6000, help='number of images in the sweep')
    parser.add_argument('--threads', type=int, default=1, help='number of threads in the table recent')
    options = parser.parse_args()
    if not 0.3 <= options.recall <= 0.99:
        parser.error(f'--recall {options.recall}: expected a number from 0.3 to 0.99')
    one_thread()
    print(f'torch {torch.__version__}, numpy {np.__version__}, faiss {faiss.__version__}, one thread')
    for name in options.tables or tables:
        print()
        tables[name](options)


if __name__ == '__main__':
    main()
