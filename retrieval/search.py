"""The nearest rows of a matrix of embeddings: exactly, or in an inverted file whose recall was measured."""
import numpy as np
from tqdm import tqdm

from evaluation.ranking.nearest_rows import ROWS, exact, faiss_or_none

# how an index is searched: n_cells of an inverted file, 0 for exact search; n_images when this was chosen
EXACT = {'n_cells': 0, 'n_visited': 0, 'recall': 1.0, 'n_images': 0}
LARGE = 200_000              # number of images from which on an inverted file is tried
N_QUERIES = 500              # queries that measure its recall
N_NEAREST = 10               # images that each query should find
PER_CELL = 64                # images per cell that k-means is fitted to
N_ITERATIONS = 10            # iterations of k-means


def nearest_cells(points, centroids):
    """[n] int32: the cell of each point, given by the nearest centroid."""
    return exact(centroids, points, 1)[:, 0].astype(np.int32)


def train(gallery, least):
    """
    An inverted file (Jegou et al., Product Quantization for Nearest Neighbor Search, TPAMI 2011): k-means divides the
    gallery [N, D] into √N cells, and a query is compared with the images of the nearest cells only.

    Returns {'n_cells', 'n_visited', 'recall', 'n_images'}, centroids [C, D] and cells [N]. n_visited is the smallest
    power of two at which `recall`, the fraction of the exact ten nearest that is found, is `least` or more. If that
    takes more than a quarter of the cells, exact search is hardly slower; then, and without faiss, EXACT is returned,
    and None in place of the arrays.
    """
    faiss = faiss_or_none()
    without = (EXACT | {'n_images': len(gallery)}, None, None)
    if faiss is None or least == 1:
        return without
    n_cells = int(len(gallery) ** 0.5)
    random = np.random.default_rng(0)
    kmeans = faiss.Kmeans(gallery.shape[1], n_cells, niter=N_ITERATIONS, seed=0)
    kmeans.train(gallery[np.sort(random.permutation(len(gallery))[:PER_CELL * n_cells])])
    chunks = range(0, len(gallery), ROWS)
    cells = np.concatenate([nearest_cells(gallery[start:start + ROWS], kmeans.centroids)
                            for start in tqdm(chunks, desc='sorting into cells', leave=False, disable=None)])
    index = inverted_file(gallery, kmeans.centroids, cells)
    samples = np.sort(random.permutation(len(gallery))[:N_QUERIES])
    queries = gallery[samples]
    truth = exact(gallery, queries, N_NEAREST + 1)
    for power in range(n_cells.bit_length()):
        index.nprobe = 2 ** power
        if index.nprobe > n_cells / 4:
            return without
        recall = overlap(truth, index.search(queries, N_NEAREST + 1)[1], samples)
        if recall >= least:
            return {'n_cells': n_cells, 'n_visited': index.nprobe, 'recall': recall,
                    'n_images': len(gallery)}, kmeans.centroids, cells


def overlap(truth, found, samples):
    """The fraction of the rows in `truth` that are in `found`, [Q, k] each, without the queries themselves."""
    others = truth != samples[:, None]
    hits = np.stack([np.isin(one, other) for one, other in zip(truth, found, strict=True)])
    return float(hits[others].mean())


def inverted_file(gallery, centroids, cells, n_visited=1):
    """faiss's index of these cells; it has a copy of the gallery."""
    import faiss
    dim = gallery.shape[1]
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(dim), dim, len(centroids))
    index.quantizer.add(np.ascontiguousarray(centroids))
    index.is_trained = True
    index.nprobe = n_visited
    for start in range(0, len(gallery), ROWS):
        part, own = gallery[start:start + ROWS], cells[start:start + ROWS].astype(np.int64)
        index.add_core(len(part), faiss.swig_ptr(np.ascontiguousarray(part)), None, faiss.swig_ptr(own))
    return index
