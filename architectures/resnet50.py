"""ResNet-50 with the ImageNet weights of torchvision's first release, those of Roth et al. He et al., CVPR 2016."""
from architectures import torchvision_models


def backbone(opt):
    return torchvision_models.backbone(opt, 'resnet50', weights='IMAGENET1K_V1')
