"""The shape of the embedding space: class distances and spectrum. Roth et al., ICML 2020, section 5."""
import numpy as np

from utilities.errors import UserError

ROWS = 4096                  # embeddings that are held in float64 at a time


def class_distances(embeddings, labels):
    """
    Mean cosine distances of [N, D] embeddings, in closed form from sums of the embeddings, in float64.

    labels: [N] int64, each class from 0 on at least once.

    Returns {'intra': the mean distance between two images of a class, averaged over the classes of two or more images,
             'inter': the mean distance between the normalised means of two classes,
             'intra_over_inter'}; nan where there are no two images or classes to compare.
    """
    sizes = np.bincount(labels)
    sums = np.zeros((len(sizes), embeddings.shape[1]))             # sums of normalised embeddings
    sums_as_given = np.zeros_like(sums)
    largest = 1e-300                                               # norm of an embedding
    own = np.zeros(len(sizes))
    order = np.argsort(labels, kind='stable')
    for start in range(0, len(order), ROWS):
        part = order[start:start + ROWS]
        given = embeddings[part].astype(float)
        unit = normalised(given, least=1e-100)
        largest = max(largest, np.sqrt(squared_norms(given).max()))
        classes, first = np.unique(labels[part], return_index=True)
        sums[classes] += np.add.reduceat(unit, first)
        sums_as_given[classes] += np.add.reduceat(given, first)
        own[classes] += np.add.reduceat(squared_norms(unit), first)
    several = sizes > 1
    n = sizes[several].astype(float)
    # Σ over i ≠ j of x_i·x_j is ‖Σ x_i‖² − Σ ‖x_i‖²
    intra = (1 - (squared_norms(sums[several]) - own[several]) / (n * n - n)).mean() if several.any() else np.nan
    means = normalised(sums_as_given / largest)
    n = len(means)
    inter = 1 - ((means.sum(axis=0) ** 2).sum() - (means * means).sum()) / (n * n - n) if n > 1 else np.nan
    return {'intra': intra, 'inter': inter, 'intra_over_inter': intra / inter if inter else np.nan}


def squared_norms(vectors):
    return np.einsum('nd,nd->n', vectors, vectors)


def normalised(vectors, least=1e-12):
    """Divides vectors by their norms, or by `least` if the norm is smaller and thus a rounding error."""
    return vectors / np.maximum(np.sqrt(squared_norms(vectors)), least)[:, None]


def singular_values(embeddings):
    """[min(N, D)] singular values of uncentred [N, D] embeddings, descending, from the D x D Gram matrix in float64."""
    eigenvalues = np.linalg.eigvalsh(gram(embeddings))[::-1][:min(embeddings.shape)]
    noise = eigenvalues[0] * len(eigenvalues) * np.finfo(float).eps
    return np.sqrt(np.where(eigenvalues > noise, eigenvalues, 0))


def gram(embeddings, centre=0):
    """[D, D] float64: the inner products of the columns of [N, D] embeddings minus `centre`."""
    products = np.zeros((embeddings.shape[1],) * 2)
    for start in range(0, len(embeddings), ROWS):
        part = embeddings[start:start + ROWS].astype(float) - centre
        products += part.T @ part
    return products


def principal_components(embeddings, dim):
    """
    Returns a function that projects [N, D] embeddings, minus the mean of `embeddings`, onto the `dim` directions
    of largest variance: [N, dim] float32. Raises UserError where the embeddings have fewer dimensions.
    """
    if dim > embeddings.shape[1]:
        raise UserError(f'--pca {dim}: the embeddings have {embeddings.shape[1]} dimensions')
    mean = embeddings.mean(axis=0, dtype=float)
    directions = np.linalg.eigh(gram(embeddings, mean))[1][:, ::-1][:, :dim]
    # the sign of an eigenvector is arbitrary: make its largest entry positive
    directions = directions * np.sign(np.take_along_axis(directions, abs(directions).argmax(axis=0)[None], axis=0))
    return lambda points: (points @ directions - mean @ directions).astype(np.float32)


def rho_spectrum(values, k):
    """
    The divergence between a spectrum and the uniform one. values: singular values, descending. S is the spectrum
    without its |k| - 1 largest values, divided by its sum. Returns KL(uniform ‖ S) for k > 0 and KL(S ‖ uniform) for
    k < 0; for k = 0, the whole spectrum divided by its sum.

    inf where S has a zero and k > 0; nan where no value is left.
    """
    kept = values[max(abs(k) - 1, 0):]
    if not kept.sum() > 0:
        return np.full(len(kept), np.nan) if k == 0 else np.nan
    fractions = kept / kept.sum()
    if k == 0:
        return fractions
    n = len(fractions)
    if k > 0:
        return np.inf if (fractions == 0).any() else float(-np.log(n * fractions).mean())
    return float((fractions * np.log(np.where(fractions > 0, n * fractions, 1))).sum())
