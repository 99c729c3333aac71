"""--pool: pools the last feature maps of a convolutional network, or the tokens of a ViT, to one vector per image."""
import functools

import torch

from utilities.errors import UserError


class Gem(torch.nn.Module):
    """Generalised mean (mean of x^p)^(1/p) with trainable p. Radenovic et al., PAMI 2019, arXiv:1711.02512, Eq. 2."""

    def __init__(self, p=3.0, eps=1e-6):
        super().__init__()
        self.p = torch.nn.Parameter(torch.tensor(p))
        self.eps = eps

    def forward(self, maps):
        """[B, C, H, W] -> [B, C]; values below eps are set to eps."""
        wide = maps.to(torch.promote_types(maps.dtype, torch.float32))       # x³ underflows in half precision
        return wide.clamp(min=self.eps).pow(self.p).mean(dim=(2, 3)).pow(1 / self.p).to(maps.dtype)


def average(maps):
    return maps.mean(dim=(2, 3))


def maximum(maps):
    return maps.flatten(2).max(dim=2).values


def class_token(tokens, n_prefix):
    return tokens[:, 0]


def mean_of_patches(tokens, n_prefix):
    return tokens[:, n_prefix:].mean(dim=1)


OF_MAPS = {'avg': average, 'max': maximum, 'avg_max': lambda maps: average(maps) + maximum(maps), 'gem': Gem}
OF_TOKENS = {'token': class_token, 'patches': mean_of_patches, 'token_patches': lambda tokens, n_prefix: torch.cat(
    [class_token(tokens, n_prefix), mean_of_patches(tokens, n_prefix)], dim=1)}


def select(opt, backbone):
    """
    The function or module of --pool, from maps [B, C, H, W] or tokens [B, T, C] to features [B, F]. Raises UserError if
    the network does not give the maps or tokens, or has no class token.
    """
    if backbone.maps is None:
        raise UserError(f'--pool {opt.pool}: --arch {opt.arch} gives only pooled features; leave the flag out or '
                        'choose a network of timm')
    network = backbone.network
    has_class_token = getattr(network, 'has_class_token', getattr(network, 'cls_token', None) is not None)
    if opt.pool.startswith('token') and not (backbone.n_prefix and has_class_token):
        raise UserError(f'--pool {opt.pool}: --arch {opt.arch} has no class token')
    if opt.pool == 'gem':
        return Gem()
    pool = OF_MAPS.get(opt.pool)
    return pool or functools.partial(OF_TOKENS[opt.pool], n_prefix=backbone.n_prefix)


def check(opt, maps):
    """Raises UserError if --pool is for maps and the network gives tokens, or the other way round."""
    shape = list(maps.shape) if isinstance(maps, torch.Tensor) else type(maps).__name__
    kind, names = {4: ('maps', OF_MAPS), 3: ('tokens', OF_TOKENS)}.get(len(shape), ('neither maps nor tokens', ()))
    if opt.pool not in names:
        advice = f'choose from {", ".join(names)}' if names else 'leave the flag out'
        raise UserError(f'--pool {opt.pool}: --arch {opt.arch} gives {kind} ({shape} for one image); {advice}')
