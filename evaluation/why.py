"""
Why two images match: what each place of an image adds to the cosine of two embeddings. Stylianou, Souvenir and Pless,
Visualizing Deep Similarity Networks, WACV 2019.

If the embedding is a linear function of the average of the feature maps, the cosine is a sum over places. Otherwise
(gem and max pooling, hidden layers) a place adds its features times the gradient of the cosine, with the norm of the
embedding as a constant. What no place adds, such as a bias, is divided equally, so that a map sums to the cosine.
"""
import torch

from evaluation.embedding import network_input
from utilities import image_size
from utilities.errors import UserError


def check(opt, network):
    """Raises UserError for --pictures why with a network, or with flags, whose embeddings no places add up to."""
    where = '--pictures why shows what each place of the feature maps adds to an embedding'
    for flag in ('pca', 'cascade', 'eval_views'):
        if getattr(opt, flag, None):
            raise UserError(f'{where}; leave --{flag} out')
    if network.maps is None:
        raise UserError(f'{where}, and --arch {opt.arch} gives only pooled features')
    was_training = network.training
    network.eval()
    with torch.no_grad():
        sides = image_size.sides(network.input_size)
        image = torch.rand(1, 3, *sides, generator=torch.Generator().manual_seed(0))
        image = image.to(network.mean.device)
        maps, features = feature_maps(network, image), network(image)[1]
        pooled = pool(network, maps)
    network.train(was_training)
    if maps.dim() == 3 and (pooled is None or uses_class_token(network, maps)):
        raise UserError(f'{where}, and --arch {opt.arch} does not pool its patch tokens alone (--pool patches)')
    if pooled is None or not torch.allclose(pooled, features, rtol=1e-3, atol=1e-4):
        raise UserError(f'{where}, and --arch {opt.arch} pools them in a way of its own (--pool avg, gem or max)')


def feature_maps(network, images):
    """Images [B, 3, H, W] in [0, 1] -> what the network pools: maps [B, C, h, w] or tokens [B, T, C]."""
    return network.maps(network.backbone, network.normalised(network_input(images, network.mean.device)))


def pool(network, maps):
    """Maps or tokens -> features [B, F]: by --pool, by their average, or not pooled at all; None for other networks."""
    if network.pool:
        return network.pool(maps)
    if maps.dim() == 4 and maps.shape[1] == network.n_features:
        return maps.mean(dim=(2, 3))
    return maps.flatten(1) if maps.dim() == 4 and maps[0].numel() == network.n_features else None


def uses_class_token(network, maps):
    maps = maps.detach().requires_grad_()
    with torch.enable_grad():
        gradient, = torch.autograd.grad(pool(network, maps).sum(), maps)
    return bool(gradient[:, :n_prefix(network)].any())


def n_prefix(network):
    """The number of tokens before the patch tokens, of a network that pools tokens."""
    return network.pool.keywords['n_prefix']


def similarity_map(network, image, other, of_features=False):
    """
    Args:
        network:     an EmbeddingNetwork in evaluation mode, of which check() holds.
        image:       [3, H, W] in [0, 1].
        other:       [D], the other image's embedding, of norm 1.
        of_features: whether pooled features are compared, as with --eval_features.

    Returns: [h, w] float32 on the CPU: what each place adds to the cosine of the two embeddings, which is their sum.
    """
    with torch.no_grad():
        maps = feature_maps(network, image[None])
    maps = maps.detach().requires_grad_()
    with torch.enable_grad():
        features = pool(network, maps)
        embedding = (features if of_features else network.f_embed(features))[0].float()    # before it is normalised
        cosine = embedding @ other / embedding.detach().norm()
    gradient, = torch.autograd.grad(cosine, maps)
    maps, cosine = maps.detach(), cosine.detach()
    if maps.dim() == 4:
        added = (maps * gradient).sum(dim=1)[0]
    else:
        added = (maps * gradient).sum(dim=2)[0, n_prefix(network):]
        n_rows = round((len(added) * image.shape[1] / image.shape[2]) ** 0.5)
        added = added.reshape(n_rows, -1)
    return (added + (cosine - added.sum()) / added.numel()).cpu()
