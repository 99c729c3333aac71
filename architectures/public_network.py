"""
Networks that are written for the public code of Roth et al. docs/from_the_public_code.md says what they may contain,
and what to edit by hand.
"""
import torch
import torch.nn.functional as F

from utilities.errors import UserError
from utilities.image_size import sides, written

# Blue, green, red, and values in [0, 255], as the weights of BN-Inception expect them
OF_BNINCEPTION = {'mean': (104 / 255, 117 / 255, 128 / 255), 'std': (1 / 255, 1 / 255, 1 / 255), 'bgr': True}


class PooledFeatures(torch.nn.Module):
    """
    A class `Network` of the public code: images [B, 3, H, W] -> the input of its embedding layer [B, F]. The layer
    itself is replaced by an identity, since EmbeddingNetwork has it as f_embed.
    """
    ROOT = 'network.model'                     # the module with the blocks that --freeze counts

    def __init__(self, network):
        super().__init__()
        self.network = network
        layer = network.model.last_linear
        identity = torch.nn.Identity()                       # one for all names of the layer
        for name in [name for name, part in network.named_modules(remove_duplicate=False) if part is layer]:
            network.set_submodule(name, identity)

    def forward(self, images):
        taken = []
        hook = self.network.model.last_linear.register_forward_pre_hook(lambda _, given: taken.append(given[0]))
        try:
            self.network(images.contiguous())                # these networks call view(), which needs this layout
        finally:
            hook.remove()
        return taken[-1]


@torch.no_grad()
def backbone_arguments(opt, module):
    """
    The arguments of the Backbone of the class `Network` in an architecture's file, with its embedding layer
    self.model.last_linear. Its constructor loads its weights, and may read opt.pretrained. Raises UserError if the
    embeddings are not the output of this layer, normalised or not.
    """
    own = {'embed_layers': [], 'embed_norm': 'none', 'embed_bias': True, 'embed_init': 'default', 'cascade': []}
    for flag, default in own.items():
        if getattr(opt, flag) != default:
            raise UserError(f'--{flag}: --arch {opt.arch} has an embedding layer of its own; leave the flag out')
    opt.pretrained = not opt.not_pretrained
    built = module.Network(opt).cpu().eval()
    layer = built.model.last_linear
    size = opt.input_size or 224
    images = torch.rand(2, 3, *sides(size), generator=torch.Generator().manual_seed(0))
    output = built(images)
    output = output['embeds'] if isinstance(output, dict) else output
    embeddings = output[0] if isinstance(output, tuple) else output
    features = PooledFeatures(built)
    linear = layer(features(images))
    normalize = '_normalize' in opt.arch
    expected = F.normalize(linear, dim=-1) if normalize else linear
    if embeddings.shape != (2, opt.embed_dim) or not torch.allclose(embeddings, expected, rtol=1e-3, atol=1e-5):
        raise UserError(f'--arch {opt.arch}: its embeddings {[*embeddings.shape]} of two images of {written(size)} '
                        f'pixels should be the output of self.model.last_linear, normalised with _normalize in the '
                        f'name, of --embed_dim {opt.embed_dim} dimensions (docs/from_the_public_code.md)')
    input_format = OF_BNINCEPTION if 'bninception' in opt.arch else {}
    return {'network': features, 'size': size, 'download': features.state_dict, 'f_embed': layer} | input_format
