"""MobileNetV2. Sandler et al., CVPR 2018."""
import torch

from architectures import torchvision_models


def backbone(opt):
    backbone = torchvision_models.backbone(opt, 'mobilenet_v2', weights='IMAGENET1K_V1')
    backbone.network.classifier = torch.nn.Identity()          # this also removes its dropout
    return backbone
