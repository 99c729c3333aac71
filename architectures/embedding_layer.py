"""The embedding layer: an optional norm and linear layers. A single linear layer can be fitted by PCA."""
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


def embedding_layer(opt, n_features, dim):
    """
    Features [B, F] -> embeddings [B, D]: the norm --embed_norm, then a linear layer from n_features to dim, or
    an MLP with ReLU and hidden layers of the widths --embed_layers. Raises UserError for --embed_init pca on more than
    a single linear layer.
    """
    for flag in ('cascade', 'embed_layers'):
        if opt.embed_init == 'pca' and getattr(opt, flag):
            raise UserError(f'--embed_init pca fits a single linear layer; leave --{flag} out')
    widths = [n_features, *opt.embed_layers, dim]
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
def fit(opt, f_embed, features):
    """
    Fits the linear layer of f_embed to features [N, F] after its norm, for --embed_init pca. If it has a bias, the
    embeddings are centred. A BatchNorm gets the statistics of the features as its running statistics.

    Raises UserError if there are fewer features than --embed_dim.
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
        raise UserError(f'--embed_init pca: the backbone has {features.shape[1]} features, and the embeddings cannot '
                        f'have more dimensions; set --embed_dim {features.shape[1]} or less, not {opt.embed_dim}')
    weight = principal_components(features, opt.embed_dim)
    layer.weight.copy_(weight)
    if layer.bias is not None:
        layer.bias.copy_(-weight @ features.mean(dim=0))


def principal_components(features, dim):
    """
    [dim, F]: the orthonormal directions of largest variance of features [N, F] in float64, the largest first. In
    each, the coefficient of largest magnitude is positive, so that all machines agree on the signs.
    """
    rows = torch.linalg.eigh(torch.cov(features.T))[1][:, features.shape[1] - dim:].T.flip(0)
    return rows * rows.gather(1, rows.abs().argmax(dim=1, keepdim=True)).sign()
