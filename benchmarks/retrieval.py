"""
Time and memory of an index of a million images, with synthetic embeddings: classes of about ten images, spread so that
the recall at 1 is about 0.6; the standard deviations of the principal components decrease as in a trained
network. Processor time, one thread; memory is the peak above the process's memory before.

OMP_NUM_THREADS=1 python -m benchmarks.retrieval [--images 1000000] [--dim 128] [--recall_at_1 0.6]
"""
import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks import Row
from benchmarks.embeddings import embeddings, recall_at_1
from benchmarks.measure import measure, median_times
from retrieval import Index, changes, search, store

PER_CLASS = 10
DECAY = 0.65                 # the i-th standard deviation is i^-0.65: photos of groceries, MobileNetV2, triplet loss
N_QUERIES = 100
NETWORK = argparse.Namespace(source='synthetic', id='0' * 16, settings={})


def synthetic(n, dim, recall):
    """[n, dim] float32 of norm 1, and the measured recall at 1, which is about `recall`."""
    points, labels, _ = embeddings(n, n // PER_CLASS, 2 * PER_CLASS, 0, dim, recall, decay=DECAY)
    return points.numpy(), recall_at_1(points.numpy(), labels, None)


def make(folder, points, recall):
    """Writes an index of the points, as Retrieve_Images.py index does after it has embedded the photos."""
    store.create(folder, NETWORK, recall)
    content = store.read(folder)
    for start in range(0, len(points), search.ROWS):
        part = points[start:start + search.ROWS]
        records = [[f'/photos/{start + row:012}.jpg', 100_000, 1_700_000_000_000_000_000] for row in range(len(part))]
        content = changes.extended(folder, content, records, part, ())
    return content


def opened(folder, is_exact):
    """The index, after its first query."""
    index = Index(folder)
    if is_exact:
        index.content['search'] = search.EXACT
    index.query(index.embeddings[:1])
    return index


def search_row(folder, queries, truth, is_exact):
    """Seconds and MB to the answer of the first query, ms of a query alone, of one among N_QUERIES, and the recall."""
    seconds, memory = measure(lambda: opened(folder, is_exact))
    index = opened(folder, is_exact)
    alone = [processor_seconds(lambda query=query: index.query(query[None])) for query in queries[:50]]
    together = processor_seconds(lambda: index.nearest(queries)) / len(queries)
    found = index.nearest(queries)[0]
    recall = np.mean([np.isin(one, other).mean() for one, other in zip(truth, found, strict=True)])
    return (f'| {"exact" if is_exact else "inverted file"} | {seconds:.1f} | {memory:,.0f} | '
            f'{np.median(alone) * 1e3:.2f} | {together * 1e3:.2f} | {recall:.3f} |')


def processor_seconds(function):
    began = time.process_time()
    function()
    return time.process_time() - began


def short():
    import faiss
    points, _ = synthetic(100_000, 128, 0.6)
    flat = faiss.IndexFlatL2(128)
    flat.add(points)
    with tempfile.TemporaryDirectory() as folder:
        make(folder, points, 1)
        exact, cells = Index(folder), Index(folder)
        how, centroids, assigned = search.train(points, 0.95)
        cells.inverted_file = search.inverted_file(points, centroids, assigned, how['n_visited'])
        for name, index, target in (('exact', exact, 1.1), ('inverted file', cells, 0.5)):
            times = median_times({'ours': lambda index=index: index.query(points[:1]),
                                  'peer': lambda: flat.search(points[:1], 10)})
            yield Row(f'query of 100,000 x 128, {name}; faiss.IndexFlatL2', times['ours'], times['peer'], target)


def main():
    parser = argparse.ArgumentParser(prog='benchmarks.retrieval', description=__doc__)
    parser.add_argument('--images', type=int, default=1_000_000)
    parser.add_argument('--dim', type=int, default=128)
    parser.add_argument('--recall_at_1', type=float, default=0.6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    points, measured = synthetic(options.images, options.dim, options.recall_at_1)
    print(f'{options.images:,} x {options.dim}, recall at 1 {measured:.2f}', flush=True)
    random = np.random.default_rng(1)
    queries = points[random.permutation(len(points))[:N_QUERIES]]
    with tempfile.TemporaryDirectory() as folder:
        seconds, memory = measure(lambda: make(folder, points, 0.95))
        print(f'writing embeddings and paths: {seconds:.1f} s, {memory:,.0f} MB', flush=True)
        seconds, memory = measure(lambda: changes.refit(Index(folder)))
        print(f'choosing the search: {seconds:.1f} s, {memory:,.0f} MB; {Index(folder)}', flush=True)
        print(f'on disk: {sum(file.stat().st_size for file in Path(folder).iterdir()) / 2 ** 20:,.0f} MB', flush=True)
        truth = search.exact(points, queries, search.N_NEAREST)
        print('| search | s to open | MB | ms per query, alone | ms per query, together | recall@10 |\n'
              '|---|---|---|---|---|---|')
        for is_exact in (True, False)[:1 + bool(Index(folder).content['search']['n_cells'])]:
            print(search_row(folder, queries, truth, is_exact), flush=True)
        seconds, memory = measure(lambda: changes.remove(folder, ['/photos/000000000007.jpg']))
        print(f'removing an image: {seconds:.1f} s, {memory:,.0f} MB')


if __name__ == '__main__':
    main()
