"""GoogLeNet, torchvision's variant with BatchNorm. Szegedy et al., CVPR 2015."""
from architectures import torchvision_models


def backbone(opt):
    """Without dropout, for images of 227 pixels."""
    backbone = torchvision_models.backbone(opt, 'googlenet', weights='IMAGENET1K_V1', size=227)
    backbone.network.dropout.p = 0.0
    return backbone
