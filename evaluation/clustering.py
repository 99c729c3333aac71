"""K-means with as many clusters as evaluated classes, and what it says of the classes."""
import numpy as np
import torch

N_ITERATIONS = 20


def kmeans(embeddings, k, seed):
    """
    [N, D] float32 -> the cluster of each image, [N] int64 array below k <= N.

    On the CPU by faiss where it is installed, else, and on a GPU, in torch. Both start from k random images.
    """
    try:
        import faiss
    except ImportError:
        faiss = None
    if faiss is None or embeddings.device.type != 'cpu':
        return kmeans_torch(embeddings, k, seed)
    points = np.ascontiguousarray(embeddings.numpy())
    search = faiss.Kmeans(points.shape[1], k, niter=N_ITERATIONS, seed=seed % 2 ** 31, min_points_per_centroid=1,
                          max_points_per_centroid=len(points))
    search.train(points)
    return search.index.search(points, 1)[1][:, 0]


def kmeans_torch(points, k, seed, chunk=1 << 24):
    """Lloyd's algorithm; a cluster that loses its last image takes over the image farthest from its own centre."""
    generator = torch.Generator().manual_seed(seed)
    centres = points[torch.randperm(len(points), generator=generator)[:k].to(points.device)]
    rows = max(1, chunk // k)

    def assign():
        half_norms = (centres * centres).sum(dim=1) / 2
        best = [torch.addmm(-half_norms, part, centres.T).max(dim=1) for part in points.split(rows)]
        return torch.cat([found.values for found in best]), torch.cat([found.indices for found in best])

    for _ in range(N_ITERATIONS):
        closeness, cluster = assign()
        sizes = torch.bincount(cluster, minlength=k)
        empty = (sizes == 0).nonzero()[:, 0]
        if len(empty):
            squared = (points * points).sum(dim=1) - 2 * closeness
            # only images of clusters that keep another one may move; ties in the order of the index
            order = squared.masked_fill(sizes[cluster] < 2, -1).sort(descending=True, stable=True).indices
            cluster[order[:len(empty)]] = empty
            sizes = torch.bincount(cluster, minlength=k)
        sums = torch.zeros_like(centres).index_add_(0, cluster, points)
        centres = torch.where(sizes[:, None] > 0, sums / sizes.clamp(min=1)[:, None], centres)
    return assign()[1].cpu().numpy()


def nmi(labels, clusters):
    """Normalised mutual information, with the arithmetic mean of the entropies as normaliser."""
    from sklearn.metrics import normalized_mutual_info_score
    return normalized_mutual_info_score(labels, clusters, average_method='arithmetic')


def ami(labels, clusters):
    """Adjusted mutual information, with the arithmetic mean as normaliser."""
    from sklearn.metrics import adjusted_mutual_info_score
    return adjusted_mutual_info_score(labels, clusters, average_method='arithmetic')


def f1(labels, clusters):
    """F1 of the pairs of images in one cluster as a guess at the pairs in one class; nan where there are none."""
    def n_pairs(groups):
        sizes = np.unique(groups, return_counts=True)[1]
        return int((sizes * (sizes - 1) // 2).sum())

    both = n_pairs(labels.astype(np.int64) * (int(clusters.max()) + 1) + clusters)
    guessed, true = n_pairs(clusters), n_pairs(labels)
    return 2 * both / (guessed + true) if guessed + true else np.nan
