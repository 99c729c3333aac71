"""The search of an index by faiss, whose `index_factory` string is --codes; and the recall of codes."""
import contextlib

import numpy as np

from retrieval.nearest_rows import MORE, exact
from utilities.errors import UserError
from utilities.optional import faiss_or_none

N_QUERIES = 500              # queries with which the recall is measured
N_NEAREST = 10               # images that each query should find
CANDIDATES = 100             # faiss finds at least so many images, which are ranked by their embeddings
RECALL = 0.95                # the recall at which no more cells of an inverted file are added


@contextlib.contextmanager
def reported(factory):
    """In the block, an error of faiss becomes a UserError with faiss's reason."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).rpartition("' failed: ")[2].rpartition(': ')[2].strip()
        raise UserError(f'codes {factory}: {reason} (faiss)') from None


def built(factory, dim):
    """An empty index of faiss for dim dimensions. Raises UserError if faiss does not accept the string for them."""
    faiss = faiss_or_none()
    if faiss is None:
        raise UserError(f'codes {factory}: it needs faiss: pip install faiss-cpu')
    with reported(factory):
        index = faiss.index_factory(dim, factory)
    coder = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index
    if isinstance(coder, faiss.IndexPQ):
        coder.do_polysemous_training = False      # it orders codes, in a minute, for searches not made here
    return index


def filled(factory, points, gallery):
    """An index of the gallery [N, D], fitted to the points [n, D]. Raises UserError where these are too few."""
    index = built(factory, points.shape[1])
    with reported(factory):
        index.train(np.ascontiguousarray(points))
        index.add(np.ascontiguousarray(gallery))
    return index


def candidates(index, queries, k):
    """
    The rows [Q, R] of the images that faiss's `index` finds near the queries, more than k (−1: none), in an order that
    is not exact. None if they are fewer than k for a query, which happens if it visits few cells.
    """
    rows = index.search(queries, min(max(k + MORE, CANDIDATES), index.ntotal))[1]
    return None if (rows[:, :k] < 0).any() else rows


def fit(gallery, factory):
    """
    faiss's index of the gallery [N, D] and its recall, the fraction of the exact ten nearest images that it finds. For
    an inverted file, the number of cells that a query visits is doubled until the recall reaches RECALL, up to a
    quarter of the cells.
    """
    index = filled(factory, gallery, gallery)
    samples = np.sort(np.random.default_rng(0).permutation(len(gallery))[:N_QUERIES])
    queries = np.ascontiguousarray(gallery[samples])
    truth = exact(gallery, queries, N_NEAREST + 1)
    recall = overlap(truth, index.search(queries, CANDIDATES)[1], samples)
    cells = faiss_or_none().try_extract_index_ivf(index)
    while cells is not None and recall < RECALL and 2 * cells.nprobe <= cells.nlist / 4:
        cells.nprobe = 2 * cells.nprobe
        recall = overlap(truth, index.search(queries, CANDIDATES)[1], samples)
    return index, recall


def overlap(truth, found, samples):
    """The fraction of the rows in `truth` [Q, k] that are in `found` [Q, n], without the queries themselves."""
    others = truth != samples[:, None]
    hits = np.stack([np.isin(one, other) for one, other in zip(truth, found, strict=True)])
    return float(hits[others].mean())
