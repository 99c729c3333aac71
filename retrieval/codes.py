"""
Evaluate_Network.py RUN codes SQ8 PQ16 ...: how well short codes of the embeddings find images. A code is a string of
faiss's index_factory, fitted to the training split. A leading number, as in 64 or 64,SQ8, keeps the first 64 components
(Kusupati et al., Matryoshka Representation Learning, NeurIPS 2022).
"""
import time

import numpy as np

import parts
from evaluation import rank_metrics
from evaluation.protocol import build_pool, embed_splits, note_collapse, split_of_pictures
from evaluation.ranking.neighbours import Search
from retrieval import search
from retrieval.nearest_rows import exact
from utilities import processes
from utilities.errors import UserError
from utilities.text_tables import aligned

METRICS = {'e_recall@1': rank_metrics.precision_at_1, 'map_at_r': rank_metrics.map_at_r}
WITHOUT = ('eval_level',)                                    # main.py's flags that it does not read


def flags(parser):
    parser.add_argument('codes', nargs='+', metavar='CODE',
                        help="a string of faiss's index_factory, a number of dimensions, or both: 64 SQ8 PQ16 64,PQ16")


def compare(opt):
    """Prints the table for the split of split_of_pictures()."""
    built = parts.restore(opt, opt.evaluate)
    split = split_of_pictures(opt, built.data)
    splits = [name for name in built.data.evaluation if name in ('train', split)]
    embedded = embed_splits(opt, built.model, built.data, splits, built.criterion)
    if embedded[split].ranking:
        raise UserError(f'codes: --loss {opt.loss} ranks by a distance of its own, and codes keep Euclidean distances; '
                        'give --eval_features')
    print(processes.run_on_rank_zero(report, opt, embedded, split))


def report(opt, embedded, split):
    """The text of compare(). embedded: {split: Embedded}."""
    note_collapse(embedded, [split])
    pool = build_pool(opt, embedded, split, 'class')
    asked = Search(pool.embeddings.cpu().float(), pool.labels, pool.is_query, pool.in_gallery)
    train = embedded['train'].embeddings.cpu().float().numpy() if 'train' in embedded else asked.gallery.numpy()
    rows = [measure(code, asked, train) for code in dict.fromkeys(['Flat', *opt.codes])]
    cells = [[f'{value:.4f}' if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    return (f'{split}: {len(asked.queries):,} queries in {len(asked.gallery):,} images, embeddings of '
            f'{train.shape[1]} dimensions\n{aligned([[*rows[0]], *cells])}')


def measure(code, asked, train):
    """
    A row of the table: the bytes of a code; the fraction of the exact ten nearest images that are among the first ten;
    metrics; and the milliseconds per query when all are searched together. asked: a Search; train: [M, D] embeddings.
    """
    first, _, rest = code.partition(',')
    dim, factory = (int(first), rest or 'Flat') if first.isdecimal() else (train.shape[1], code)
    if not 0 < dim <= train.shape[1]:
        raise UserError(f'codes {code}: the embeddings have {train.shape[1]} dimensions')
    gallery = asked.gallery.numpy()
    queries = asked.queries.numpy()
    index = search.filled(factory, train[:, :dim], gallery[:, :dim])
    n_nearest = search.N_NEAREST + bool((asked.own >= 0).any())                        # the query itself is among them
    deep = min(max(n_nearest, int(asked.n_positives.max()) + 1), len(gallery))
    begin = time.perf_counter()
    found = index.search(np.ascontiguousarray(queries[:, :dim]), deep)[1]
    seconds = time.perf_counter() - begin
    others = (found >= 0) & (found != asked.own[:, None])
    hits = others & (asked.gallery_labels[found] == asked.query_labels[:, None])
    ranks = np.sort(np.where(hits, others.cumsum(axis=1), np.inf), axis=1)
    counts = asked.n_positives > 0
    values = {name: float(metric(ranks[counts], asked.n_positives[counts]).mean()) if counts.any() else np.nan
              for name, metric in METRICS.items()}
    with search.reported(factory):
        n_bytes = index.sa_code_size()
    truth = exact(gallery, queries, min(n_nearest, len(gallery)))
    recall = search.overlap(truth, found[:, :n_nearest], asked.own)
    return {'code': code, 'bytes': n_bytes, 'recall of 10': recall} | values | {'ms': 1000 * seconds / len(queries)}
