"""Inception with BatchNorm, of pretrainedmodels: BGR from 0 to 255, less the mean. Ioffe & Szegedy, ICML 2015."""
from architectures import pretrainedmodels_models


def backbone(opt):
    return pretrainedmodels_models.backbone(opt, 'bninception', size=224)
