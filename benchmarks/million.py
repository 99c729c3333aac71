"""
Memory and time of ranking a million embeddings of 100,000 classes on the CPU, each a query against all others: mean of
ten images per class, recall at 1 about 0.53, the metrics of a large study.

python -m benchmarks.million [--images 1000000] [--dim 128] [--queries 1000] [--threads 2]

With --queries, only so many images are queries, and all images are the gallery. The printed memory is the
memory of the whole process, before ranking and at the peak. Linux only, since both are read from /proc.
"""
import argparse
import sys
import time

import numpy as np
import torch

import evaluation
from benchmarks.embeddings import embeddings
from benchmarks.measure import measure, resident
from utilities import errors, stopping

METRICS = ['e_recall@1', 'e_recall@10', 'precision_at_1', 'r_precision', 'map_at_r', 'mAP_1000']
PER_CLASS, LARGEST, RECALL = 10, 20, 0.53


def rank(n, dim, n_queries=0):
    """Makes and ranks n embeddings: ({metric: value}, wall-clock seconds, processor seconds, MB before, MB added)."""
    print(f'making {n:,} embeddings of {dim} dimensions', file=sys.stderr, flush=True)
    points, labels, _ = embeddings(n, max(1, n // PER_CLASS), LARGEST, 0, dim, RECALL)
    is_query = in_gallery = None
    if n_queries:
        is_query, in_gallery = np.random.default_rng(0).permutation(n) < n_queries, np.ones(n, bool)
    print('ranking', file=sys.stderr, flush=True)
    pool, values = evaluation.Pool(points, labels, is_query=is_query, in_gallery=in_gallery), {}
    began = time.perf_counter()
    processor, added = measure(lambda: values.update(evaluation.compute(METRICS, points, labels, pool=pool)))
    wall = time.perf_counter() - began
    return values, wall, processor, resident('VmHWM') - added, added


def main(arguments):
    parser = argparse.ArgumentParser(prog='benchmarks.million', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--images', type=int, default=1_000_000, help='number of images')
    parser.add_argument('--dim', type=int, default=128, help='dimensions of the embeddings')
    parser.add_argument('--queries', type=int, default=0, help='number of random queries; 0: all images')
    parser.add_argument('--threads', type=int, default=torch.get_num_threads(), help='number of threads')
    options = parser.parse_args(arguments)
    stopping.install()
    torch.set_num_threads(options.threads)
    values, wall, processor, before, added = rank(options.images, options.dim, options.queries)
    pairs = (options.queries or options.images) * options.images
    print(f'{options.images:,} images of {options.dim} dimensions, {options.queries or options.images:,} queries, '
          f'{options.threads} threads: {wall:.1f} s, {processor:.1f} s of processor time, '
          f'{processor / pairs * 1e9:.2f} ns per pair; {before / 1e3:.2f} GB before ranking, '
          f'{(before + added) / 1e3:.2f} GB at the peak')
    print(', '.join(f'{name} {value:.4f}' for name, value in values.items()))


if __name__ == '__main__':
    sys.exit(errors.exit_code('benchmarks.million', lambda: main(sys.argv[1:])))
