"""K-means, with as many clusters as evaluated classes, and the metrics that compare clusters with classes."""
import numpy as np
import torch

from evaluation.ranking import precision
from utilities.optional import faiss_or_none

N_ITERATIONS = 20


def kmeans(embeddings, k, seed):
    """
    [N, D] -> the cluster of each image, [N] int64 array below k <= N.

    faiss clusters on the CPU, torch on a GPU or where faiss is not installed. Both start from k random images, and
    compute in float32 after the mean of all images is subtracted.
    """
    embeddings = precision.around_their_mean(embeddings)(embeddings).to(embeddings.device)
    faiss = faiss_or_none()
    if faiss is None or embeddings.device.type != 'cpu':
        return kmeans_torch(embeddings, k, seed)
    points = np.ascontiguousarray(embeddings.numpy())
    search = faiss.Kmeans(points.shape[1], k, niter=N_ITERATIONS, seed=seed % 2 ** 31, min_points_per_centroid=1,
                          max_points_per_centroid=len(points))
    search.train(points)
    return search.index.search(points, 1)[1][:, 0]


def kmeans_torch(points, k, seed, chunk=1 << 24):
    """Lloyd's algorithm. A cluster that loses its last image gets the image that is farthest from its centre."""
    generator = torch.Generator().manual_seed(seed)
    centres = points[torch.randperm(len(points), generator=generator)[:k].to(points.device)]
    rows = max(1, chunk // k)

    def assign():
        half_norms = (centres * centres).sum(dim=1) / 2
        best = [torch.addmm(-half_norms, part, centres.T).max(dim=1) for part in points.split(rows)]
        return torch.cat([found.values for found in best]), torch.cat([found.indices for found in best])

    for _ in range(N_ITERATIONS):
        scores, cluster = assign()
        sizes = torch.bincount(cluster, minlength=k)
        empty = (sizes == 0).nonzero()[:, 0]
        if len(empty):
            squared = (points * points).sum(dim=1) - 2 * scores
            # a cluster keeps its only image; ties are in index order
            order = squared.masked_fill(sizes[cluster] < 2, -1).sort(descending=True, stable=True).indices
            cluster[order[:len(empty)]] = empty
            sizes = torch.bincount(cluster, minlength=k)
        sums = torch.zeros_like(centres).index_add_(0, cluster, points)
        centres = torch.where(sizes[:, None] > 0, sums / sizes.clamp(min=1)[:, None], centres)
    return assign()[1].cpu().numpy()


class Contingency:
    """
    The non-zero numbers of images of each class in each cluster. labels, clusters: [N] int64, from 0.

    information:  the mutual information of classes and clusters, in nats.
    mean_entropy: the mean of the entropies of the classes and of the clusters, in nats.
    """

    def __init__(self, labels, clusters):
        self.n = len(labels)
        self.classes = np.bincount(labels)
        self.clusters = np.bincount(clusters)
        pairs, self.shared = np.unique(labels * len(self.clusters) + clusters, return_counts=True)
        self.expected = (self.classes[pairs // len(self.clusters)] * self.clusters[pairs % len(self.clusters)]
                         / self.n)                         # number of images if classes and clusters were independent
        self.information = max(0.0, float((self.shared * np.log(self.shared / self.expected)).sum() / self.n))
        fractions = [sizes[sizes > 0] / self.n for sizes in (self.classes, self.clusters)]
        self.mean_entropy = -float(sum((part * np.log(part)).sum() for part in fractions)) / 2


def nmi(table):
    """Normalised mutual information, with the arithmetic mean of the entropies as normaliser; 1 where both are 0."""
    return table.information / table.mean_entropy if table.mean_entropy > 0 else 1.0


def ami(table):
    """
    Adjusted mutual information, with the arithmetic mean as normaliser. Vinh et al., Information Theoretic Measures for
    Clusterings Comparison, JMLR 2010, Eq. 24a. The expectation is summed over the distinct sizes.
    """
    if table.mean_entropy == 0:
        return 1.0
    log_factorial = np.concatenate([[0], np.log(np.arange(1, table.n + 1)).cumsum()])
    expected = 0.0
    for a, n_a in zip(*np.unique(table.classes[table.classes > 0], return_counts=True), strict=True):
        for b, n_b in zip(*np.unique(table.clusters[table.clusters > 0], return_counts=True), strict=True):
            both = np.arange(max(1, a + b - table.n), min(a, b) + 1)
            fixed = (log_factorial[[a, b, table.n - a, table.n - b]]).sum() - log_factorial[table.n]
            chance = np.exp(fixed - log_factorial[both] - log_factorial[a - both] - log_factorial[b - both]
                            - log_factorial[table.n - a - b + both])
            expected += n_a * n_b * (both / table.n * np.log(table.n * both / (a * b)) * chance).sum()
    span = table.mean_entropy - expected
    # 0/0 where every image is the only one of its class and of its cluster
    return (table.information - expected) / span if abs(span) > 1e-12 * table.mean_entropy else 1.0


def f1(table):
    """F1 of pairs of images: same cluster predicts same class; nan where no pair shares a cluster or a class."""
    def n_pairs(sizes):
        return int((sizes * (sizes - 1) // 2).sum())

    both, predicted, true = map(n_pairs, (table.shared, table.clusters, table.classes))
    return 2 * both / (predicted + true) if predicted + true else np.nan
