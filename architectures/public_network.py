"""
Networks written for the public code of Roth et al.: a class Network(opt) with an embedding layer of its own,
self.model.last_linear.
"""
import torch
import torch.nn.functional as F

from architectures.embedding_network import Backbone
from architectures.pooling import average
from utilities.errors import UserError

# Blue, green, red, and values in [0, 255], as the weights of BN-Inception expect them
OF_BNINCEPTION = {'mean': (104 / 255, 117 / 255, 128 / 255), 'std': (1 / 255, 1 / 255, 1 / 255), 'bgr': True}


class PooledFeatures(torch.nn.Module):
    """
    A public network: images [B, 3, H, W] -> the input of its embedding layer [B, F]. The layer itself is replaced by an
    identity, since EmbeddingNetwork has it as f_embed.
    """
    ROOT = 'network.model'                     # the module with the blocks that --freeze counts

    def __init__(self, network):
        super().__init__()
        self.network = network
        layer, identity = network.model.last_linear, torch.nn.Identity()
        for name in [name for name, part in network.named_modules(remove_duplicate=False) if part is layer]:
            network.set_submodule(name, identity)

    def forward(self, images):
        return self.both(images)[0]

    def both(self, images):
        """The input of the embedding layer, and what the network returns."""
        taken = []
        hook = self.network.model.last_linear.register_forward_pre_hook(lambda _, given: taken.append(given[0]))
        try:
            output = self.network(images.contiguous())       # these networks call view(), which needs this layout
        finally:
            hook.remove()
        return taken[-1], output

    def maps(self, images):
        """The last maps [B, C, h, w], where the network returns them."""
        output = self.both(images)[1]
        if isinstance(output, dict):
            return output.get('features')
        return output[1][1] if isinstance(output, tuple) else None


def embeddings_of(output):
    """What a public network returns -> the embeddings: alone, with features, or as `embeds` of a dict."""
    output = output['embeds'] if isinstance(output, dict) else output
    return output[0] if isinstance(output, tuple) else output


@torch.no_grad()
def backbone(opt, module):
    """
    The Backbone of the class `Network` in an architecture's file, with its embedding layer. Its constructor loads its
    weights, and may read opt.pretrained.

    Raises UserError if the embeddings are not self.model.last_linear of the pooled features, normalised or not.
    """
    check_flags(opt)
    opt.pretrained = not opt.not_pretrained
    try:
        network = module.Network(opt).cpu().eval()
    except OSError as error:
        raise UserError(f'--arch {opt.arch}: its Network could not load its weights ({error}); train from scratch with '
                        '--not_pretrained, or provide the weights where it looks for them') from None
    layer, size = getattr(getattr(network, 'model', None), 'last_linear', None), opt.input_size or 224
    if not isinstance(layer, torch.nn.Module):
        raise UserError(f'--arch {opt.arch}: its Network has no embedding layer self.model.last_linear '
                        '(docs/extending.md)')
    images = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    try:
        embeddings = embeddings_of(network(images))
        features, maps = PooledFeatures(network), None
        taken = features(images)
        maps = features.maps(images)
    except RuntimeError as error:
        raise UserError(f'--arch {opt.arch}: its Network cannot process images of {size} pixels ({error}); set '
                        '--input_size') from None
    linear = layer(taken)
    normalize = not same(embeddings, linear)
    if embeddings.shape != (2, opt.embed_dim) or normalize and not same(embeddings, F.normalize(linear, dim=-1)):
        raise UserError(f'--arch {opt.arch}: its embeddings {[*embeddings.shape]} of two images should be the output '
                        f'of self.model.last_linear, normalised or not, with --embed_dim {opt.embed_dim} dimensions; '
                        'move the operations after this layer into it (docs/extending.md)')
    is_average = maps is not None and maps.dim() == 4 and same(average(maps), taken.flatten(1))
    return Backbone(features, size, **(OF_BNINCEPTION if 'bninception' in opt.arch else {}),
                    download=features.state_dict, f_embed=layer, normalize=normalize,
                    maps=PooledFeatures.maps if is_average else None)


def same(one, other):
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-5)


def check_flags(opt):
    """Raises UserError for flags of the embedding layer, which is the network's own."""
    for flag, default in (('embed_layers', []), ('embed_norm', 'none'), ('embed_bias', True), ('embed_init', 'default'),
                          ('cascade', [])):
        if getattr(opt, flag) != default:
            raise UserError(f'--{flag}: --arch {opt.arch} is a network of the public code, with an embedding layer of '
                            'its own; leave the flag out')
