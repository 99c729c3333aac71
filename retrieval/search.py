"""The approximate search of an index by faiss: of any `index_factory` string, or the cells of an inverted file."""
import contextlib

import numpy as np
from tqdm import tqdm

from evaluation.ranking.nearest_rows import MORE, ROWS, exact, faiss_or_none, measured
from utilities.errors import UserError

LARGE = 200_000              # number of images from which on an inverted file is tried
N_QUERIES = 500              # queries with which the recall is measured
N_NEAREST = 10               # images that each query should find
N_TRAIN = 100_000            # at most so many images are used to fit faiss
CANDIDATES = 100             # at least so many images are found by faiss, and ranked by their embeddings


@contextlib.contextmanager
def reported(factory):
    """In the block, an error of faiss becomes a UserError with faiss's reason."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).rpartition("' failed: ")[2].rpartition(': ')[2].strip()
        raise UserError(f'codes {factory}: {reason} (faiss)') from None


def chosen(codes, recall, n_images):
    """
    faiss's string for an index of so many images; '' for exact search. The default is exact search below LARGE images,
    and otherwise an inverted file of √N cells (Jegou et al., Product Quantization for Nearest Neighbor Search, TPAMI
    2011).
    """
    if faiss_or_none() is None or not n_images:
        return ''
    return codes or (f'IVF{int(n_images ** 0.5)},Flat' if n_images >= LARGE and recall < 1 else '')


def opened(data):
    """The index of faiss from the bytes of as_bytes()."""
    try:
        return faiss_or_none().deserialize_index(data)
    except RuntimeError as error:
        raise UserError(f'the search of the index cannot be read ({error}); make the index again') from None


def as_bytes(index):
    return faiss_or_none().serialize_index(index)


def built(factory, dim):
    """An empty index of faiss for dim dimensions. Raises UserError if faiss does not accept the string for them."""
    faiss = faiss_or_none()
    if faiss is None:
        raise UserError(f'codes {factory}: it needs faiss: pip install faiss-cpu')
    with reported(factory):
        index = faiss.index_factory(dim, factory)
    for part in (index, getattr(index, 'pq', None)):
        if hasattr(part, 'cp'):
            part.cp.min_points_per_centroid = 1              # otherwise faiss prints a warning for few images
    return index


def trained(factory, points):
    """The empty index, fitted to the `points` [n, D]. Raises UserError where they are too few."""
    index = built(factory, points.shape[1])
    sample = np.sort(np.random.default_rng(0).permutation(len(points))[:N_TRAIN])
    with reported(factory):
        index.train(np.ascontiguousarray(points[sample]))
    return index


def add(index, factory, points):
    with reported(factory):
        for start in tqdm(range(0, len(points), ROWS), desc='add to the search', leave=False, disable=None):
            index.add(np.ascontiguousarray(points[start:start + ROWS]))


def nearest(index, gallery, queries, k):
    """
    As nearest_rows.nearest(), but only among the candidates that faiss's `index` finds. Returns None if they are fewer
    than k for a query, which happens if it visits few cells.
    """
    rows = index.search(queries, min(max(k + MORE, CANDIDATES), len(gallery)))[1]
    if (rows[:, :min(k, len(gallery))] < 0).any():
        return None
    return measured(gallery, queries, rows, k)


def fit(gallery, factory, least):
    """
    faiss's index of the gallery [N, D] and its recall, the fraction of the exact ten nearest images that it finds. For
    an inverted file, the number of cells that a query visits is doubled until the recall reaches `least`, up to a
    quarter of the cells.
    """
    index = trained(factory, gallery)
    add(index, factory, gallery)
    samples = np.sort(np.random.default_rng(0).permutation(len(gallery))[:N_QUERIES])
    queries = np.ascontiguousarray(gallery[samples])
    truth = exact(gallery, queries, N_NEAREST + 1)
    cells = faiss_or_none().try_extract_index_ivf(index)
    n_visited = 1
    while True:
        if cells is not None:
            cells.nprobe = n_visited
        recall = overlap(truth, index.search(queries, CANDIDATES)[1], samples)
        n_visited *= 2
        if recall >= least or cells is None or n_visited > cells.nlist / 4:
            return index, recall


def overlap(truth, found, samples):
    """The fraction of the rows in `truth` [Q, k] that are in `found` [Q, n], without the queries themselves."""
    others = truth != samples[:, None]
    hits = np.stack([np.isin(one, other) for one, other in zip(truth, found, strict=True)])
    return float(hits[others].mean())
