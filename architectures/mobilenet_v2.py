"""MobileNetV2. Sandler et al., CVPR 2018."""
import torch

from architectures import torchvision_models

SIZES = (1, 2, 3, 4, 3, 3, 1)                              # the number of blocks of each of timm's stages
OUTSIDE = {'conv_stem': 'features.0.0', 'bn1': 'features.0.1', 'conv_head': 'features.18.0', 'bn2': 'features.18.1',
           'conv.0': 'features.18.0', 'conv.1': 'features.18.1', 'classifier': 'classifier.1'}
# layers of a block in torchvision: their names in timm, and in the first PyTorch versions, which number all layers
FIRST = {'0.0': ('conv_dw', '0'), '0.1': ('bn1', '1'), '1': ('conv_pw', '3'), '2': ('bn2', '4')}
OTHERS = {'0.0': ('conv_pw', '0'), '0.1': ('bn1', '1'), '1.0': ('conv_dw', '3'), '1.1': ('bn2', '4'),
          '2': ('conv_pwl', '6'), '3': ('bn3', '7')}


def backbone(opt):
    backbone = torchvision_models.backbone(opt, 'mobilenet_v2', weights='IMAGENET1K_V1')
    backbone.network.classifier = torch.nn.Identity()          # its dropout goes as well
    backbone.converted = converted
    return backbone


def converted(network, state):
    """A state dict with the names of timm or of the first PyTorch versions -> with the names of torchvision."""
    is_of_timm = 'conv_stem.weight' in state
    if not is_of_timm and 'features.1.conv.0.weight' not in state:
        return state
    names = dict(OUTSIDE)
    places = [(stage, block) for stage, size in enumerate(SIZES) for block in range(size)]
    for number, (stage, block) in enumerate(places, start=1):
        for own, (of_timm, first) in (FIRST if number == 1 else OTHERS).items():
            given = f'blocks.{stage}.{block}.{of_timm}' if is_of_timm else f'features.{number}.conv.{first}'
            names[given] = f'features.{number}.conv.{own}'
    found = {}
    for key, value in state.items():
        layer, _, parameter = key.rpartition('.')
        found[f'{names.get(layer, layer)}.{parameter}'] = value
    return found
