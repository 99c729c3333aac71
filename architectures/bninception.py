"""Inception with BatchNorm, of pretrainedmodels: input is BGR, 0 to 255, minus the mean. Ioffe & Szegedy, ICML 2015."""
from architectures import pretrainedmodels_models


def backbone(opt):
    return pretrainedmodels_models.backbone(opt, 'bninception', size=224)
