"""Networks: a backbone with an embedding layer instead of its classifier."""
import difflib

from architectures import (
    bninception,
    conv4,
    efficientnet_lite0,
    googlenet,
    mobilenet_v2,
    pooling,
    pretrainedmodels_models,
    public_network,
    resnet50,
    timm_models,
    torchvision_models,
    weights,
)
from architectures.embedding_network import Backbone, EmbeddingNetwork, count_features
from flags.namespace import changed
from utilities.errors import UserError, choose, nearest, undeclared_flags
from utilities.image_size import in_evaluation, sides, written

ARCHITECTURES = {
    'resnet50': resnet50,
    'bninception': bninception,
    'googlenet': googlenet,
    'mobilenet_v2': mobilenet_v2,
    'conv4': conv4,
    'efficientnet_lite0': efficientnet_lite0,
}
PREFIXES = {
    'timm': timm_models,
    'torchvision': torchvision_models,
    'pretrainedmodels': pretrainedmodels_models,
}
SUFFIXES = ('_frozen', '_normalize', '_double')


def parse(arch):
    """'resnet50_frozen_normalize' -> ('resnet50', {'_frozen', '_normalize'}); the suffixes may come in any order."""
    found = set()
    while suffix := next((suffix for suffix in SUFFIXES if arch.endswith(suffix)), None):
        arch = arch.removesuffix(suffix)
        found.add(suffix)
    return arch, found


def find(arch):
    """
    'torchvision:resnet18_normalize' -> (torchvision_models, 'resnet18'); without a prefix, the network's own module.

    Raises UserError for an unknown prefix, and without a prefix for an unknown name.
    """
    name, _, of_library = parse(arch)[0].partition(':')
    if of_library:
        return choose(PREFIXES, name, '--arch, prefix'), of_library
    if name not in ARCHITECTURES:
        libraries = ', '.join(f'{prefix}:NAME' for prefix in PREFIXES)
        raise unknown(arch, ARCHITECTURES, f'choose from {", ".join(ARCHITECTURES)}, or from the libraries {libraries}')
    return ARCHITECTURES[name], name


def unknown(arch, names, choices):
    """The UserError for an --arch that is none of `names`; it gives the most similar name, with the right suffixes."""
    prefix, colon, name = arch.rpartition(':')
    for suffix in SUFFIXES:
        for word in difflib.get_close_matches(suffix[1:], name.split('_')[1:], cutoff=0.75):
            name = name.replace(f'_{word}', suffix)
    ending = name.removeprefix(parse(name)[0])
    near = nearest(name, [known + ending for known in names], prefix + colon)
    return UserError(f'--arch {arch}: unknown; {choices}; {" and ".join(SUFFIXES[:2])} may be appended{near}')


@undeclared_flags()
def select_backbone(opt):
    """The Backbone of --arch without its weights; nothing is downloaded. Raises UserError for an unknown name."""
    module, name = find(opt.arch)
    if module in PREFIXES.values():
        has_source = name.startswith(getattr(module, 'SOURCES', ()))
        if not has_source and name not in module.names():
            raise unknown(opt.arch, module.names(), f'{module.NAMES} lists the names')
        backbone = module.backbone(opt, name)
    elif hasattr(module, 'Network'):                                  # a file of the public code
        backbone = Backbone(**public_network.backbone_arguments(opt, module))
    else:
        backbone = module.backbone(opt)
    for name in ('mean', 'std'):
        values = getattr(opt, f'input_{name}')
        if values and len(values) not in (1, 3):
            raise UserError(f'--input_{name} takes one number or one per channel, not {len(values)}')
        if values:
            setattr(backbone, name, tuple(values * 3 if len(values) == 1 else values))
    if opt.input_bgr is not None:
        backbone.bgr = opt.input_bgr
    if '_double' in parse(opt.arch)[1] and backbone.f_embed is None:
        if opt.pool not in (None, 'avg_max'):
            raise UserError(f'--arch {opt.arch}: _double means --pool avg_max; leave --pool {opt.pool} out')
        opt = changed(opt, pool='avg_max')
    backbone.pool = pooling.select(opt, backbone) if opt.pool else None
    given = f'--input_size {written(backbone.size)}'
    backbone.n_features = count_features(backbone, opt, sides(backbone.size), given)
    for given, size in in_evaluation(opt, backbone.size).items():
        if count_features(backbone, opt, size, given) != backbone.n_features:
            raise UserError(f'{given}: --arch {opt.arch} has another number of features for images of this size than '
                            f'for training images; give --pool, or leave {given.split()[0]} out')
    return backbone


def select(opt, backbone=None):
    """
    The network --arch, with its weights. backbone: None, or the result of an earlier select_backbone(opt).

    Raises UserError for an unknown name and for weights that are not available.
    """
    backbone = backbone or select_backbone(opt)
    arch, suffixes = parse(opt.arch)
    if opt.weights or not opt.not_pretrained:
        weights.load(opt, arch, backbone)
    return EmbeddingNetwork(opt, backbone, '_frozen' in suffixes, '_normalize' in suffixes)
