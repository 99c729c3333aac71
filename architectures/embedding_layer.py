"""The embedding layer: an optional norm and linear layers. A single linear layer can be fitted in closed form."""
import itertools

import torch

from utilities.errors import UserError

NORMS = {
    'layer': lambda width, affine: torch.nn.LayerNorm(width, elementwise_affine=affine),
    'batch': lambda width, affine: torch.nn.BatchNorm1d(width, affine=affine),
}
INITS = {
    'orthogonal': torch.nn.init.orthogonal_,
    'kaiming': lambda weight: torch.nn.init.kaiming_normal_(weight, mode='fan_out'),
    'identity': torch.nn.init.eye_,
}
FITTED = ('pca', 'lda')


def check_flags(opt):
    """Raises UserError for an --embed_init that does not go with other flags."""
    if opt.embed_init not in FITTED:
        return
    if opt.cascade:
        raise UserError(f'--embed_init {opt.embed_init} fits a single linear layer; leave --cascade out')
    if opt.embed_layers:
        raise UserError(f'--embed_init {opt.embed_init} fits a single linear layer; leave --embed_layers out')
    if opt.embed_init == 'lda' and opt.unsupervised:
        raise UserError('--embed_init lda uses the labels of the training images; leave it out with --unsupervised')


def embedding_layer(opt, n_features):
    """
    Features [B, F] -> embeddings [B, D]: the norm --embed_norm, then a linear layer from n_features to --embed_dim, or
    an MLP with ReLU and hidden layers of the widths --embed_layers.
    """
    widths = [n_features, *opt.embed_layers, opt.embed_dim]
    layers = [torch.nn.Linear(n_in, n_out, bias=opt.embed_bias) for n_in, n_out in itertools.pairwise(widths)]
    if opt.embed_init in INITS:
        for layer in layers:
            INITS[opt.embed_init](layer.weight)
            if opt.embed_bias:
                torch.nn.init.zeros_(layer.bias)
    norms = [NORMS[opt.embed_norm](n_features, opt.embed_norm_affine)] if opt.embed_norm != 'none' else []
    parts = norms + [part for layer in layers for part in (torch.nn.ReLU(), layer)][1:]
    return parts[0] if len(parts) == 1 else torch.nn.Sequential(*parts)


@torch.no_grad()
def fit(opt, f_embed, features, labels):
    """
    Fits the linear layer of f_embed to the features after its norm, by --embed_init pca or lda. If it has a bias, the
    embeddings are centred. A BatchNorm gets the statistics of the features as its running statistics.

    features [N, F], labels [N] int64. Raises UserError if there are fewer features than --embed_dim.
    """
    *norms, layer = f_embed if isinstance(f_embed, torch.nn.Sequential) else [f_embed]
    features = features.to(layer.weight.device)
    for norm in norms:
        if isinstance(norm, torch.nn.BatchNorm1d):
            norm.running_mean.copy_(features.mean(dim=0))
            norm.running_var.copy_(features.var(dim=0))
        features = norm.eval()(features)
    features = features.cpu().double()
    if opt.embed_dim > features.shape[1]:
        raise UserError(f'--embed_init {opt.embed_init}: the backbone has {features.shape[1]} features, and the '
                        'embeddings cannot have more dimensions; '
                        f'set --embed_dim {features.shape[1]} or less, not {opt.embed_dim}')
    if opt.embed_init == 'pca':
        weight = principal_components(features, opt.embed_dim)
    else:
        weight = discriminants(features, torch.as_tensor(labels), opt.embed_dim, opt.embed_lda_shrinkage)
    layer.weight.copy_(weight)
    if layer.bias is not None:
        layer.bias.copy_(-weight @ features.mean(dim=0))


def principal_components(features, dim):
    """[dim, F]: the orthonormal directions of largest variance of features [N, F] in float64, the largest first."""
    return with_fixed_signs(leading_eigenvectors(torch.cov(features.T), dim))


def discriminants(features, labels, dim, shrinkage):
    """
    Linear discriminant analysis (Fisher, 1936; Rao, 1948): [dim, F], directions in which the within-class covariance W
    is the identity, in descending order of the variance of the class means.

    At most C − 1 directions separate the C class means. In the remaining directions all class means coincide; they are
    in descending order of their variance relative to the shrunken W, and have the same scale.

    features:  [N, F] float64.
    shrinkage: s; the shrunken W is (1 − s) W + s (trace W / F) I. Raises UserError if it is not invertible.
    """
    n_features = features.shape[1]
    counts, means = class_means(features, labels)
    within = torch.cov((features - means[labels]).T, correction=0)
    eye = torch.eye(n_features, dtype=features.dtype)
    values, vectors = torch.linalg.eigh((1 - shrinkage) * within + shrinkage * within.trace() / n_features * eye)
    if values[0] <= 1e-12 * values[-1]:
        raise UserError(f'--embed_init lda: the within-class covariance of the {n_features} features is singular with '
                        f'--embed_lda_shrinkage {shrinkage}; a larger one makes it invertible')
    whitening = vectors / values.sqrt()                                                    # [F, F]
    spread = (means - features.mean(dim=0)) * (counts / len(features)).sqrt().unsqueeze(1) @ whitening
    n_separating = min(dim, n_features, len(counts) - 1)
    directions = leading_eigenvectors(spread.T @ spread, n_separating)
    if dim > n_separating:
        elsewhere = eye - directions.T @ directions
        rest = elsewhere @ (whitening.T @ within @ whitening) @ elsewhere
        directions = torch.cat([directions, leading_eigenvectors(rest, dim - n_separating)])
    return with_fixed_signs(directions @ whitening.T)


def class_means(features, labels):
    """(number of features [C], their mean [C, F]) of each class; labels are 0 to C − 1."""
    counts = labels.bincount().to(features.dtype)
    sums = features.new_zeros(len(counts), features.shape[1]).index_add_(0, labels, features)
    return counts, sums / counts.unsqueeze(1)


def leading_eigenvectors(symmetric, n):
    """[n, F]: the eigenvectors of the n largest eigenvalues, in rows."""
    return torch.linalg.eigh(symmetric)[1][:, len(symmetric) - n:].T.flip(0)


def with_fixed_signs(rows):
    """Each row times 1 or −1, so that its coefficient of largest magnitude is positive, on every machine."""
    return rows * rows.gather(1, rows.abs().argmax(dim=1, keepdim=True)).sign()
