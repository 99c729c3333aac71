"""ResNet-50 with torchvision's first ImageNet weights, as used by Roth et al. He et al., CVPR 2016."""
from architectures import torchvision_models


def backbone(opt):
    return torchvision_models.backbone(opt, 'resnet50', weights='IMAGENET1K_V1')
