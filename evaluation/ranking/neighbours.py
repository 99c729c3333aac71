"""
Queries, their gallery and the scores of their pairs. A query is left out of its own ranking by its index, and with
`cameras` the images of its class and camera are left out, too.
"""
import functools

import numpy as np
import torch

from evaluation.ranking import precision
from evaluation.ranking.arrays import take_rows
from utilities.device import full_float32

# Two float32 scores q·g − ½‖g‖² − ½‖q‖² of a query, with ‖g‖ about ‖q‖, have a difference with an error below
# BLUR √(D + 4) ε ½‖q‖²: a bound on the sum of random rounding errors (Higham and Mary, SIAM J. Sci. Comput. 2019). The
# largest of millions of measured errors was about half of it. A score counts as exact if the bound is less than a
# fraction of the score: PER_IMAGE times the size of the gallery, since more images mean more ties to decide, but at
# most TOLERANCE.
BLUR, TOLERANCE, PER_IMAGE = 4, 1e-4, 1e-8


class Search:
    """
    Queries and their gallery. The score of a pair is −½‖q − g‖², in a unit of its own: the higher, the more similar.

    embeddings: [N, D] float32 or float64 tensor, on the device to compute on. Scores are computed in float32, from the
                points that `move` returns; evaluation.ranking.deciding ranks the queries whose order they leave open.
    labels:     [N] int64 array.
    is_query:   None: each image is a query; else [N] bool.
    in_gallery: None: all images, or with is_query all images that are no queries; else [N] bool. A query that is in the
                gallery too is left out of its own ranking.
    ranking:    None, or ([N, K], [N, K]): the images as queries and as gallery, in place of their embeddings; the score
                is then their inner product in float64, which leaves nothing to decide.
    cameras:    None, or [N]: the camera of each image; the gallery images of a query's class and camera are left out of
                its ranking. Zheng et al., Scalable Person Re-identification: A Benchmark, ICCV 2015.

    gallery_by_class: [G] the gallery in the order of its classes and their cameras.
    first_left_out: [number of queries] the place in gallery_by_class where the images that are left out begin.
    query_index, gallery_index: the indices of the queries and of the gallery among the N images.
    own:         [number of queries] the index of each query in the gallery; -1 where it is not in it.
    n_left_out:  [number of queries] the number of gallery images that are left out: the query, images of its camera.
    n_positives: [number of queries]
    symmetric:   whether the score matrix is symmetric: each image is a query, and all images are the gallery. False
                 with cameras, where the numbers of positives differ within a class.
    """

    def __init__(self, embeddings, labels, is_query=None, in_gallery=None, ranking=None, cameras=None):
        everyone = np.ones(len(labels), bool)
        if in_gallery is None:
            in_gallery = everyone if is_query is None else ~is_query
        is_query = everyone if is_query is None else is_query
        self.symmetric = ranking is None and cameras is None and is_query.all() and in_gallery.all()
        self.query_index = np.flatnonzero(is_query)
        self.gallery_index = np.flatnonzero(in_gallery)
        index = np.full(len(labels), -1)
        index[self.gallery_index] = np.arange(len(self.gallery_index))
        self.own = index[self.query_index]
        self.query_labels, self.gallery_labels = labels[self.query_index], labels[self.gallery_index]
        self.sizes = np.bincount(self.gallery_labels, minlength=int(labels.max()) + 1)
        cameras = np.arange(len(labels)) if cameras is None else np.unique(cameras, return_inverse=True)[1]
        # the images of one key, an image or the images of a class and camera, are left out of each other's rankings
        keys = np.unique(labels * (cameras.max() + 1) + cameras, return_inverse=True)[1]
        query_keys, gallery_keys = keys[self.query_index], keys[self.gallery_index]
        self.gallery_by_class = np.argsort(gallery_keys, kind='stable')
        self.first_left_out = gallery_keys[self.gallery_by_class].searchsorted(query_keys)
        self.n_left_out = np.bincount(gallery_keys, minlength=keys.max() + 1)[query_keys]
        self.n_positives = self.sizes[self.query_labels] - self.n_left_out
        self.euclidean = ranking is None
        as_query, as_gallery = map(precision.wide, ranking) if ranking else (embeddings, embeddings)
        self.queries, self.gallery = take_rows(as_query, self.query_index), take_rows(as_gallery, self.gallery_index)
        self.tolerance = min(TOLERANCE, PER_IMAGE * len(self.gallery))

    @functools.cached_property
    def move(self):
        """The function from queries or gallery images to the points [n, D] whose scores are computed."""
        if not self.euclidean:
            return lambda points: points
        return precision.around_their_mean(*(self.gallery, self.queries)[:1 if self.symmetric else 2])

    @functools.cached_property
    def moved_gallery(self):
        """The points [G, D] of the gallery whose scores are computed, and their half norms [G]."""
        points = self.move(self.gallery)
        return points, self.half_norms(points)

    def half_norms(self, moved):
        """
        [n]: ½‖x‖² of points x; 0 with a ranking. A score is the inner product of two points, minus both half norms.
        """
        return (moved * moved).sum(dim=1) / 2 if self.euclidean else moved.new_zeros(len(moved))

    @functools.cached_property
    def query_half_norms(self):
        return torch.cat([self.half_norms(self.move(part)) for part in self.queries.split(precision.ROWS)])

    def blur(self, rows):
        """[q] the difference below which float32 cannot order two scores near 0, for the queries `rows`."""
        width = BLUR * (self.queries.shape[1] + 4) ** 0.5 * torch.finfo(torch.float32).eps
        return width * take_rows(self.query_half_norms, rows)

    def margins(self, rows, scores):
        """
        The difference from the `scores` [q, n] of the queries `rows` [q] below which float32 cannot order another
        score: [q, n]; 0 for scores that are so far from 0 that such a difference does not matter.
        """
        blur = self.blur(rows)[:, None]
        return blur.where(-scores < blur / self.tolerance, 0).to(scores.dtype)

    def positives(self, rows):
        """[q, R] indices of the queries' positives in the gallery, and [q, R] bool: False where a query has fewer."""
        n_positives = self.n_positives[rows]
        slots = np.arange(n_positives.max())
        exists = slots < n_positives[:, None]
        first = np.concatenate([[0], self.sizes.cumsum()])[self.query_labels[rows]]
        places = first[:, None] + slots
        places += (places >= self.first_left_out[rows, None]) * self.n_left_out[rows, None]
        return self.gallery_by_class[np.where(exists, places, 0)], exists

    def scores(self, rows):
        """
        [q, G] scores of some queries, an index array, with the gallery; −inf for images that are left out. Gallery
        images with identical embeddings have equal scores.

        On the CPU numpy multiplies: its BLAS is faster there, and the same on every machine with the same wheel.
        """
        queries = self.move(take_rows(self.queries, rows))
        gallery, gallery_half_norms = self.moved_gallery
        if queries.device.type == 'cpu':
            scores = torch.from_numpy(product(queries.numpy(), gallery.numpy()))
        else:
            with full_float32():               # threads do this within the block of metrics.compute() only
                scores = queries @ gallery.T
        if self.euclidean:
            scores.sub_(gallery_half_norms).sub_(self.half_norms(queries)[:, None])
        return self.mask_excluded(self.equal_for_copies(scores), rows)

    def prepare(self):
        """Computes what scores() and blur() need for all queries, before several threads would each compute it."""
        self.scores(np.arange(0))
        self.blur(np.arange(0))

    def precise_scores(self, rows):
        """[q, G] Euclidean scores in float64 of some queries, an index array, with the whole gallery."""
        queries = self.move(take_rows(self.queries, rows), torch.float64)
        scores = queries.new_empty(len(rows), len(self.gallery))
        for start in range(0, len(self.gallery), precision.ROWS):
            part = self.move(self.gallery[start:start + precision.ROWS], torch.float64)
            scores[:, start:start + precision.ROWS] = (queries @ part.T).sub_(self.half_norms(part))
        return self.mask_excluded(self.equal_for_copies(scores.sub_(self.half_norms(queries)[:, None])), rows)

    def equal_for_copies(self, scores):
        """The scores [q, G], equal for gallery images with identical embeddings."""
        if len(self.copies):
            copies, firsts = (torch.from_numpy(index).to(scores.device)
                              for index in (self.copies, self.originals[self.copies]))
            scores[:, copies] = scores[:, firsts]
        return scores

    def mask_excluded(self, scores, rows):
        """The scores [q, G] of the queries `rows`, with −inf for the images that are left out of their rankings."""
        counts = self.n_left_out[rows]
        ends = counts.cumsum()
        places = np.repeat(np.arange(len(rows)), counts)
        images = self.gallery_by_class[np.arange(len(places)) + (self.first_left_out[rows] - ends + counts)[places]]
        scores[tuple(torch.as_tensor(index, device=scores.device) for index in (places, images))] = -torch.inf
        return scores

    @functools.cached_property
    def originals(self):
        """[G] for each gallery image, the index of the first one with the same embedding, bit by bit."""
        rows = np.ascontiguousarray(self.gallery.cpu().numpy())
        whole = rows.view(f'V{rows.itemsize * rows.shape[1]}')[:, 0]
        _, first, place = np.unique(whole, return_index=True, return_inverse=True)
        return first[place]

    @functools.cached_property
    def copies(self):
        """[c] the gallery images that have the same embedding as an earlier one."""
        return np.flatnonzero(self.originals != np.arange(len(self.originals)))

    @functools.cached_property
    def shares_embeddings(self):
        """[number of queries] bool: whether images of the query's and another class have the same embedding."""
        first, other = self.gallery_labels[self.originals[self.copies]], self.gallery_labels[self.copies]
        shared = np.zeros(len(self.sizes), bool)
        shared[first[first != other]] = shared[other[first != other]] = True
        return shared[self.query_labels]


def product(queries, gallery):
    """
    [q, G] inner products of arrays. The last digit of a product depends on its place in the matrix and on the
    processor, so that identical rows can give different products.
    """
    return queries @ gallery.T
