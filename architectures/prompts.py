"""
Visual prompts: trainable tokens of a frozen ViT. Jia et al., Visual Prompt Tuning, ECCV 2022,
https://arxiv.org/abs/2203.12119.
"""
import functools
import math

import torch

from utilities.errors import UserError


def insert(opt, backbone):
    """
    Gives each of the first --prompt_depth blocks (0: all) --visual_prompts trainable tokens. The prompts of the first
    block are inserted behind the class token and the registers; the prompts of each later block replace them (Eqs. 4
    to 7). After the last block they are removed, so that norm and pooling see the tokens without prompts.

    Raises UserError for other networks than those of timm's VisionTransformer and Eva, and if there are fewer blocks.
    """
    network = backbone.network
    n_prompts = opt.prompts
    n_prefix = backbone.n_prefix
    if not backbone.takes_prompts:
        raise UserError(f'--visual_prompts {n_prompts}: --arch {opt.arch} cannot take them; choose a ViT of timm, such '
                        'as DINOv2, DINOv3, SigLIP or CLIP, or give --lora_rank for windowed or relative attention')
    blocks = list(network.blocks)
    if opt.prompt_depth > len(blocks):
        raise UserError(f'--prompt_depth {opt.prompt_depth}: --arch {opt.arch} has {len(blocks)} blocks; 0 means all')
    weight = network.patch_embed.proj.weight                       # [C, 3, P, P], of the layer that embeds the patches
    width = len(weight)
    bound = math.sqrt(6 / (weight[0].numel() + width))             # Xavier's, as in the authors' code
    for number, block in enumerate(blocks[:opt.prompt_depth or None]):
        prompts = weight.new_empty(n_prompts, width).uniform_(-bound, bound)
        n_replaced = n_prompts if number else 0
        block.register_parameter('prompts', torch.nn.Parameter(prompts))
        block.register_forward_pre_hook(functools.partial(with_prompts, n_prefix, n_replaced))
    blocks[-1].register_forward_hook(functools.partial(without_prompts, n_prefix, n_prompts))
    for module in network.blocks.modules():
        if hasattr(module, 'num_prefix_tokens'):                   # the tokens that have no rotary position embedding
            module.num_prefix_tokens += n_prompts


def with_prompts(n_prefix, n_replaced, block, inputs):
    """The tokens [B, T, C] -> the first n_prefix, the block's prompts, and the others without the first n_replaced."""
    tokens, *more = inputs
    size = tokens.shape[0]                                         # len(tokens) would be a constant in an export
    prompts = block.prompts.to(tokens.dtype).expand(size, -1, -1)
    return torch.cat([tokens[:, :n_prefix], prompts, tokens[:, n_prefix + n_replaced:]], dim=1), *more


def without_prompts(n_prefix, n_prompts, block, inputs, tokens):
    return torch.cat([tokens[:, :n_prefix], tokens[:, n_prefix + n_prompts:]], dim=1)
