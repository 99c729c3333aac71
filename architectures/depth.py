"""The blocks of a backbone, from its first layer to its last, which --freeze and --layer_decay count."""
import re

import torch

from utilities.errors import UserError

CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList)
STAGES = ('blocks', 'layers')                       # names of a stage's list of blocks, as in ConvNeXt and Swin
INCEPTION = re.compile(r'inception_\d\w')           # BN-Inception has no module for a block, only this prefix of names


def blocks(network):
    """
    Module names, a list per block: first the stem, which is the first layer or the patch embedding, then the blocks. A
    norm belongs to the block before it.
    """
    found = []
    root = getattr(network, 'ROOT', '')
    for name in names_inside(network, [*units(network.get_submodule(root), root and f'{root}.')]):
        module = network.get_submodule(name)
        block = INCEPTION.match(name)
        is_norm = all(parameter.ndim < 2 for parameter in module.parameters())
        if found and (is_norm or block and found[-1][0].startswith(block[0])):
            found[-1].append(name)
        else:
            found.append([name])
    return found


def names_inside(network, names):
    """
    The names of the modules. As long as the first module has more than half of the parameters, it is no stem but a
    network inside the `network`, and the names of the modules inside it take its place.
    """
    first = network.get_submodule(names[0])
    inside = [*units(first, f'{names[0]}.')]
    if inside and 2 * count(first) > count(network):
        return names_inside(network, inside + names[1:])
    return names


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


def units(network, prefix=''):
    """The names of the modules with parameters, in order. Lists of modules and stages give their children's names."""
    for name, module in network.named_children():
        nested = type(module) in CONTAINERS and any(True for part in module.children() for _ in part.children())
        if nested or any(hasattr(module, stage) for stage in STAGES):
            yield from units(module, f'{prefix}{name}.')
        elif any(True for _ in module.parameters()):
            yield prefix + name


def depths(network):
    """{name of each parameter: the index of its block}; 0 is the stem, which has all parameters outside of blocks."""
    places = {name: depth for depth, names in enumerate(blocks(network)) for name in names}
    return {parameter: next((depth for name, depth in places.items() if parameter.startswith(f'{name}.')), 0)
            for parameter, _ in network.named_parameters()}


def freeze(opt, network):
    """
    Sets requires_grad to False for the parameters that --freeze names. Returns the names of their modules, which must
    stay in evaluation mode ('' is the network). Raises UserError if the network has fewer blocks.
    """
    found = blocks(network)
    if opt.freeze == 'backbone':
        network.requires_grad_(False)
        return ['']
    last = 0 if opt.freeze == 'stem' else int(opt.freeze)
    if last >= len(found):
        raise UserError(f'--freeze {opt.freeze}: --arch {opt.arch} has {len(found) - 1} blocks after the stem')
    for name, depth in depths(network).items():
        if depth <= last:
            network.get_parameter(name).requires_grad_(False)
    return [name for names in found[:last + 1] for name in names]
