"""Low-rank adapters of the attention of a ViT. Hu et al., LoRA, ICLR 2022, https://arxiv.org/abs/2106.09685."""
import math
import re

import torch
from torch.nn.utils import parametrize

from utilities.errors import UserError

ADAPTED = re.compile(r'(.*\.)?attn\.([qkv]|qkv|[qkv]_proj|proj)')


class LowRank(torch.nn.Module):
    """A weight W [N, M] -> W + B A, with A [rank, M] at random and B [N, rank] zero at the start; scale 1."""

    def __init__(self, weight, rank):
        super().__init__()
        self.a = torch.nn.Parameter(weight.new_empty(rank, weight.shape[1]))
        self.b = torch.nn.Parameter(weight.new_zeros(len(weight), rank))
        torch.nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, weight):
        return weight + self.b @ self.a


def adapt(opt, network):
    """
    Adds trainable adapters of --lora_rank to the linear layers of the attention. Raises UserError if there is no such
    layer, or if the rank is above the rank that their weights can have.
    """
    layers = [module for name, module in network.named_modules()
              if isinstance(module, torch.nn.Linear) and ADAPTED.fullmatch(name)]
    if not layers:
        raise UserError(f'--lora_rank {opt.lora_rank}: --arch {opt.arch} has no attention with linear layers qkv and '
                        'proj; choose a ViT of timm')
    most = min(side for layer in layers for side in layer.weight.shape)
    if opt.lora_rank > most:
        raise UserError(f'--lora_rank {opt.lora_rank}: expected at most {most}, the width of the attention layers of '
                        f'--arch {opt.arch}')
    for layer in layers:
        parametrize.register_parametrization(layer, 'weight', LowRank(layer.weight, opt.lora_rank))


def merge(network):
    """Adds the adapters to the weights, so that the network has the layers and state dict of one without adapters."""
    for module in list(network.modules()):
        if parametrize.is_parametrized(module, 'weight'):
            parametrize.remove_parametrizations(module, 'weight', leave_parametrized=True)
