"""The shape of the embedding space: class distances and spectrum. Roth et al., ICML 2020, section 5."""
import numpy as np


def class_distances(embeddings, labels):
    """
    Mean cosine distances of [N, D] float64 embeddings, in closed form from the sums of the normalised embeddings.

    Returns {'intra': the mean over classes of at least two images of the distance of two of them,
             'inter': the mean distance of the normalised means of two classes,
             'intra_over_inter'}; nan where there are no two to compare.
    """
    unit = normalised(embeddings)
    sizes = np.bincount(labels)
    sums = np.zeros((len(sizes), embeddings.shape[1]))
    np.add.at(sums, labels, unit)
    several = sizes > 1
    n = sizes[several].astype(float)
    # Σ over i ≠ j of x_i·x_j is ‖Σ x_i‖² − Σ ‖x_i‖²
    own = np.bincount(labels, weights=(unit * unit).sum(axis=1))[several]
    intra = (1 - ((sums[several] ** 2).sum(axis=1) - own) / (n * n - n)).mean() if several.any() else np.nan
    means = normalised(sums)
    n = len(means)
    inter = 1 - ((means.sum(axis=0) ** 2).sum() - (means * means).sum()) / (n * n - n) if n > 1 else np.nan
    return {'intra': intra, 'inter': inter, 'intra_over_inter': intra / inter if inter else np.nan}


def normalised(vectors):
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def singular_values(embeddings):
    """Of the uncentred [N, D] float64 embeddings: [min(N, D)], descending, from the D x D Gram matrix."""
    eigenvalues = np.linalg.eigvalsh(embeddings.T @ embeddings)[::-1][:min(embeddings.shape)]
    noise = eigenvalues[0] * len(eigenvalues) * np.finfo(float).eps
    return np.sqrt(np.where(eigenvalues > noise, eigenvalues, 0))


def rho_spectrum(values, k):
    """
    How far the spectrum is from uniform, from descending singular values: of S, they without the |k| − 1 largest and
    divided by their sum, KL(uniform ‖ S) for k > 0 and KL(S ‖ uniform) for k < 0; for k = 0 S itself, all of it.

    inf where KL(uniform ‖ S) meets a zero; nan where nothing is left.
    """
    kept = values[max(abs(k) - 1, 0):]
    if not kept.sum() > 0:
        return np.full(len(kept), np.nan) if k == 0 else np.nan
    share = kept / kept.sum()
    if k == 0:
        return share
    n = len(share)
    if k > 0:
        return np.inf if (share == 0).any() else float(-np.log(n * share).mean())
    return float((share * np.log(np.where(share > 0, n * share, 1))).sum())
