"""Queries, their gallery and the scores between them; a query itself is left out by its index."""
import functools

import numpy as np
import torch

from utilities.errors import UserError


class Search:
    """
    Queries and their gallery. The score of a pair is −½‖q − g‖²: the higher, the more similar.

    embeddings: [N, D] float32 tensor, on the device to compute on.
    labels:     [N] int64 array.
    is_query:   None: each image is a query; else [N] bool.
    in_gallery: None: all images, or with is_query those that are no queries; else [N] bool. A query that is in the
                gallery too is left out of its own ranking.
    ranking:    None, or ([N, K], [N, K]): the images as queries and as gallery, in place of their embeddings; the score
                is then their inner product.

    query_index, gallery_index: the indices of the queries and of the gallery among the N images.
    own:         [number of queries] the index of each query in the gallery; -1 where it is not in it.
    n_positives: [number of queries]
    symmetric:   whether the matrix of scores is: each image is a query, and the gallery are all images.
    """

    def __init__(self, embeddings, labels, is_query=None, in_gallery=None, ranking=None):
        everyone = np.ones(len(labels), bool)
        if in_gallery is None:
            in_gallery = everyone if is_query is None else ~is_query
        self.symmetric = ranking is None and is_query is None and in_gallery.all()
        self.query_index = np.flatnonzero(everyone if is_query is None else is_query)
        self.gallery_index = np.flatnonzero(in_gallery)
        own = np.full(len(labels), -1)
        own[self.gallery_index] = np.arange(len(self.gallery_index))
        self.own = own[self.query_index]
        self.query_labels, self.gallery_labels = labels[self.query_index], labels[self.gallery_index]
        self.sizes = np.bincount(self.gallery_labels, minlength=int(labels.max()) + 1)
        self.n_positives = self.sizes[self.query_labels] - (self.own >= 0)
        self.euclidean = ranking is None
        as_query, as_gallery = ranking or (embeddings, embeddings)
        self.queries, self.gallery = rows_of(as_query, self.query_index), rows_of(as_gallery, self.gallery_index)

    def half_norms(self, points):
        """[n]: ½‖x‖², which a score is the inner product minus, for both of its points; 0 with a ranking."""
        return (points * points).sum(dim=1) / 2 if self.euclidean else points.new_zeros(len(points))

    @functools.cached_property
    def gallery_half_norms(self):
        return self.half_norms(self.gallery)

    def scores(self, index):
        """
        [q, G] scores of some queries, an index array; −inf for the query itself.

        On the CPU numpy multiplies: its BLAS is faster there, and the same on every machine with the same wheel.
        """
        queries, own = rows_of(self.queries, index), torch.as_tensor(self.own[index], device=self.queries.device)
        if queries.device.type == 'cpu':
            scores = torch.from_numpy(queries.numpy() @ self.gallery.numpy().T)
        else:
            scores = queries @ self.gallery.T
        if self.euclidean:
            scores.sub_(self.gallery_half_norms).sub_(self.half_norms(queries)[:, None])
        in_gallery = (own >= 0).nonzero()[:, 0]
        scores[in_gallery, own[in_gallery]] = -torch.inf
        return scores

    def nearest(self, queries, k):
        """The k nearest gallery images of some queries, ties in index order: [q, k]; indices among all N images."""
        index = np.searchsorted(self.query_index, queries)
        order = self.scores(index).sort(dim=1, descending=True, stable=True).indices.cpu().numpy()
        return self.gallery_index[order[:, :min(k, len(self.gallery_index) - bool((self.own[index] >= 0).any()))]]


def rows_of(points, index):
    """Rows of a tensor on any device, without a copy where they are all rows."""
    everything = np.array_equal(index, np.arange(len(points)))
    return points if everything else points[torch.as_tensor(index, device=points.device)]


def flat_index(search):
    """faiss's exact index of the gallery."""
    import faiss
    kind = faiss.IndexFlatL2 if search.euclidean else faiss.IndexFlatIP
    index = kind(search.gallery.shape[1])
    index.add(search.gallery.cpu().numpy())
    return index


def approximate_index(search, seed):
    """
    faiss's inverted file of the gallery: √G cells, of which a query visits 1 in 16. Prints the fraction of the exact
    ten nearest images that it finds, for 1,000 queries.
    """
    try:
        import faiss
    except ImportError:
        raise UserError('--knn_approx needs faiss: pip install faiss-cpu, or leave the flag out') from None
    dim, n = search.gallery.shape[1], len(search.gallery)
    kind = (faiss.IndexFlatL2, faiss.METRIC_L2) if search.euclidean else (faiss.IndexFlatIP, faiss.METRIC_INNER_PRODUCT)
    n_cells = max(1, int(n ** 0.5))
    index = faiss.IndexIVFFlat(kind[0](dim), dim, n_cells, kind[1])
    index.cp.seed, index.cp.min_points_per_centroid = seed % 2 ** 31, 1
    index.train(search.gallery.cpu().numpy())
    index.add(search.gallery.cpu().numpy())
    index.nprobe = max(1, n_cells // 16)
    sample = np.random.default_rng(seed).permutation(len(search.queries))[:1000]
    queries, k = search.queries[np.sort(sample)].cpu().numpy(), min(10, n)
    exact, found = flat_index(search).search(queries, k)[1], index.search(queries, k)[1]
    fraction = np.mean([np.isin(one, other).mean() for one, other in zip(exact, found, strict=True)])
    print(f'--knn_approx: finds {fraction:.2%} of the exact {k} nearest ({len(queries):,} queries, {n_cells:,} cells, '
          f'{index.nprobe} visited)')
    return index
