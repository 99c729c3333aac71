"""
CPU time and peak memory of the retrieval metrics on random embeddings clustered by class, compared with faiss and
pytorch-metric-learning. All run in turn in one process with one thread. Times are medians of time.process_time; memory
does not include the embeddings.

OMP_NUM_THREADS=1 python -m benchmarks.evaluation [--sizes CUB ...] [--dims 128 512]
"""
import argparse
import functools
import itertools
from statistics import median

import numpy as np
import torch

import evaluation
from benchmarks.embeddings import SIZES, embeddings
from benchmarks.measure import measure
from utilities import libraries

SHORT = ['precision_at_1', 'r_precision', 'map_at_r']
DEEP = ['e_recall@1', 'e_recall@10', 'e_recall@100', 'e_recall@1000', 'mAP_1000', 'mAP']
NEIGHBOURS = 14              # number of neighbours that faiss finds: two more than the largest class of SOP has images
# targets: how many times as fast as AccuracyCalculator SHORT is; the time of DEEP in faiss searches, at most
SHORT_TARGETS = {'CUB': 1.5, 'Cars': 1.7, 'In-Shop': 1.8, 'SOP': 2.5}
DEEP_TARGET = 1.1


def interleaved(contenders, rounds):
    """{name: function} -> {name: (median CPU seconds, largest peak MB)}; every round calls each function once."""
    found = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, function in contenders.items():
            found[name].append(measure(function))
    return {name: (median(run[0] for run in runs), max(run[1] for run in runs)) for name, runs in found.items()}


def peers(points, labels, is_query=None):
    """
    {name: function}: `faiss`, a flat search of NEIGHBOURS neighbours, on the GPU where the points and an index of faiss
    can be there; `PML`, pytorch-metric-learning's AccuracyCalculator for the metrics of SHORT, on the device of the
    points. Raises ImportError without faiss, and UserError without pytorch-metric-learning.
    """
    import faiss
    libraries.require_library('the comparison of ranking')
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    calculator = AccuracyCalculator(('precision_at_1', 'r_precision', 'mean_average_precision_at_r'),
                                    k='max_bin_count', device=points.device)
    array = points.cpu().numpy()
    targets = torch.from_numpy(labels).to(points.device)
    queries = gallery = np.ones(len(labels), bool)
    reference = ()
    if is_query is not None:
        queries = is_query
        gallery = ~is_query
        reference = points[gallery], targets[gallery], False

    def search():
        index = faiss.IndexFlatL2(points.shape[1])
        if points.is_cuda and hasattr(faiss, 'StandardGpuResources'):
            index = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)
        index.add(array[gallery])
        index.search(array[queries], NEIGHBOURS)

    return {'faiss': search, 'PML': lambda: calculator.get_accuracy(points[queries], targets[queries], *reference)}


def print_table(options):
    print(f'short: {", ".join(SHORT)}. deep: {", ".join(DEEP)}.\nfaiss: a flat search of {NEIGHBOURS} neighbours. '
          'PML: AccuracyCalculator, k = max_bin_count, for short.')
    print('| images x dim | faiss | PML | short | deep | PML / short | at least | '
          f'deep / faiss, at most {DEEP_TARGET} | MB: faiss / PML / short / deep |')
    for name, dim in itertools.product(options.sizes, options.dims):
        rounds = 5 if SIZES[name][0] < 50_000 else 2
        points, labels, is_query = embeddings(*SIZES[name], dim)
        compute = functools.partial(evaluation.compute, embeddings=points, labels=labels, is_query=is_query)
        found = interleaved(peers(points, labels, is_query) | {
            'short': functools.partial(compute, SHORT), 'deep': functools.partial(compute, DEEP)}, rounds)
        seconds = {way: of_way for way, (of_way, _) in found.items()}
        times = ' | '.join(f'{time:.2f}' for time in seconds.values())
        memory = ' / '.join(f'{peak:,.0f}' for _, peak in found.values())
        print(f'| {name} x {dim} | {times} | '
              f'{seconds["PML"] / seconds["short"]:.2f} | {SHORT_TARGETS[name]} | '
              f'{seconds["deep"] / seconds["faiss"]:.2f} | {memory} |', flush=True)


def main():
    import faiss
    parser = argparse.ArgumentParser(prog='benchmarks.evaluation', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--sizes', nargs='+', choices=SIZES, default=list(SIZES), help='data sets')
    parser.add_argument('--dims', nargs='+', type=int, default=[128, 512], help='dimensions of the embeddings')
    options = parser.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    print(f'torch {torch.__version__}, numpy {np.__version__}, faiss {faiss.__version__}, one thread')
    print_table(options)


if __name__ == '__main__':
    main()
