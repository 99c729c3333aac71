"""Networks: a backbone whose classifier is replaced by an embedding layer."""
from architectures import (
    bninception,
    conv4,
    googlenet,
    mobilenet_v2,
    pretrainedmodels_models,
    resnet50,
    timm_models,
    torchvision_models,
    weights,
)
from architectures.embedding_network import EmbeddingNetwork
from utilities.errors import UserError, choose

ARCHITECTURES = {
    'resnet50': resnet50,
    'bninception': bninception,
    'googlenet': googlenet,
    'mobilenet_v2': mobilenet_v2,
    'conv4': conv4,
}
PREFIXES = {
    'timm': timm_models,
    'torchvision': torchvision_models,
    'pretrainedmodels': pretrainedmodels_models,
}
SUFFIXES = ('_frozen', '_normalize')


def parse(arch):
    """'resnet50_frozen_normalize' -> ('resnet50', {'_frozen', '_normalize'}); the suffixes may come in any order."""
    found = set()
    while suffix := next((suffix for suffix in SUFFIXES if arch.endswith(suffix)), None):
        arch = arch.removesuffix(suffix)
        found.add(suffix)
    return arch, found


def select(opt):
    """The network --arch with its weights. Raises UserError if the name is unknown or the weights are not available."""
    arch, suffixes = parse(opt.arch)
    prefix, _, name = arch.rpartition(':')
    if prefix:
        backbone = choose(PREFIXES, prefix, '--arch, prefix').backbone(opt, name)
    else:
        backbone = choose(ARCHITECTURES, arch, '--arch').backbone(opt)
    weights.load(opt, arch, backbone)
    for flag in ('mean', 'std'):
        if getattr(opt, f'input_{flag}'):
            setattr(backbone, flag, per_channel(opt, f'input_{flag}'))
    if opt.input_bgr is not None:
        backbone.bgr = opt.input_bgr
    return EmbeddingNetwork(opt, backbone, '_frozen' in suffixes, '_normalize' in suffixes)


def per_channel(opt, flag):
    values = getattr(opt, flag)
    if len(values) not in (1, 3):
        raise UserError(f'--{flag} takes one number or one per channel, not {len(values)}')
    return tuple(values * 3 if len(values) == 1 else values)
