"""Any classification network of torchvision by name, for example --arch torchvision:convnext_tiny_normalize."""
import torch
import torchvision

from architectures.embedding_network import Backbone
from utilities.errors import UserError


class Download:
    """() -> the state dict of a torchvision weights entry, checked against its hash."""

    def __init__(self, weights):
        self.weights, self.url = weights, weights.url

    def __call__(self):
        return self.weights.get_state_dict(progress=True, check_hash=True, weights_only=True)


def backbone(opt, name, weights='DEFAULT', size=None, **arguments):
    """The network `name` without its last linear layer; weights: the name of one of its pretrained weights."""
    if name not in torchvision.models.list_models(torchvision.models):
        raise UserError(f'--arch torchvision:{name}: unknown; torchvision.models.list_models() lists the names')
    network = torchvision.models.get_model(name, weights=None, **arguments)
    entry = getattr(torchvision.models.get_model_weights(name), weights)
    preset = entry.transforms()
    head = remove_last_linear(network)
    return Backbone(network, opt.input_size or size or preset.crop_size[0], tuple(preset.mean), tuple(preset.std),
                    head=(f'{head}.',), download=Download(entry))


def remove_last_linear(network):
    """Replaces the network's last linear layer by the identity; returns the name of that layer."""
    name = [name for name, module in network.named_modules() if isinstance(module, torch.nn.Linear)][-1]
    parent, _, child = name.rpartition('.')
    setattr(network.get_submodule(parent), child, torch.nn.Identity())
    return name
