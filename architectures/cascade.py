"""
--cascade: embeddings from several depths of a backbone. Yuan et al., Hard-Aware Deeply Cascaded Embedding, ICCV 2017,
https://arxiv.org/abs/1611.05720.
"""
import functools

import torch

from architectures import depth, pooling
from architectures.embedding_layer import embedding_layer
from utilities.errors import UserError
from utilities.image_size import sides, written


class InnerLevels(torch.nn.Module):
    """
    The embedding layers after the blocks of --cascade. A forward pass of the backbone stores the pooled output of these
    blocks in `features`, {name of the block: [B, C]}; calling the module embeds them.

    Raises UserError if the backbone has no such block, if the output of the block is neither maps nor tokens, or if the
    images are not square.
    """

    def __init__(self, opt, backbone):
        super().__init__()
        for flag, size in (('input_size', backbone.size), ('eval_size', opt.eval_size)):
            if size and len(set(sides(size))) > 1:
                raise UserError(f'--{flag} {written(size)}: --cascade takes square images only')
        self.names = [last_module_name(opt, block, backbone.network) for block in opt.cascade]
        self.features = {}
        for name in self.names:
            block = backbone.network.get_submodule(name)
            block.register_forward_hook(functools.partial(self.keep, name, backbone.n_prefix))
        with torch.no_grad():
            backbone.network.eval()(torch.zeros(1, 3, *sides(backbone.size)))
        for block, name in zip(opt.cascade, self.names, strict=True):
            if self.features.get(name) is None:
                raise UserError(f'--cascade {block}: --arch {opt.arch} gives neither maps nor tokens there; choose '
                                'another block')
        dim = opt.embed_dim // (len(opt.cascade) + 1)
        self.layers = torch.nn.ModuleList(embedding_layer(opt, self.features[name].shape[1], dim)
                                          for name in self.names)
        self.features.clear()

    def keep(self, name, n_prefix, block, inputs, output):
        self.features[name] = pooled(output, n_prefix)

    def forward(self):
        """-> the embeddings of the inner levels, a list of [B, --embed_dim / K]; empties `features`."""
        return [layer(self.features.pop(name)) for layer, name in zip(self.layers, self.names, strict=True)]


def last_module_name(opt, block, network):
    """The name of the block's last module. Blocks are counted as by --freeze."""
    blocks = depth.blocks(network)
    if block >= len(blocks) - 1:
        raise UserError(f'--cascade {block}: --arch {opt.arch} has {len(blocks) - 1} blocks after the stem, and the '
                        f'last of them has an embedding anyway; give numbers below {len(blocks) - 1}')
    if depth.INCEPTION.match(blocks[block][0]):
        raise UserError(f'--cascade: --arch {opt.arch} has no module for a block; use --arch googlenet')
    return blocks[block][-1]


def pooled(output, n_prefix):
    """The mean over the positions of maps [B, C, h, h] or [B, h, h, C] or tokens [B, T, C]: [B, C]; else None."""
    if not isinstance(output, torch.Tensor) or output.dim() not in (3, 4):
        return None
    if output.dim() == 3:
        return pooling.mean_of_patches(output, n_prefix)
    are_maps_last = output.shape[2] == output.shape[3]             # [B, C, S, S]: images are square; else [B, S, S, C]
    return output.mean(dim=(2, 3) if are_maps_last else (1, 2))
