"""The network that is trained: a backbone, its input format, and the embedding layer on its pooled features."""
import contextlib
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from utilities.errors import UserError

N_CLASSES = 1000                        # of ImageNet
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def embedding_layer(widths):
    """A linear layer for two widths, an MLP with ReLU between its linear layers for more."""
    layers = [torch.nn.Linear(n_in, n_out) for n_in, n_out in itertools.pairwise(widths)]
    between = [part for layer in layers for part in (torch.nn.ReLU(), layer)][1:]
    return layers[0] if len(layers) == 1 else torch.nn.Sequential(*between)


def remove_classifier(network, arch):
    """
    Puts the identity in the place of the network's last layer, a linear one or a convolution that gives the logits of
    ImageNet's classes; returns that layer's name. Raises UserError where the last layer gives something else.
    """
    layers = [(name, module) for name, module in network.named_modules()
              if isinstance(module, torch.nn.Linear | torch.nn.Conv2d)]
    name, layer = layers[-1]
    n_outputs = layer.out_features if isinstance(layer, torch.nn.Linear) else layer.out_channels
    if n_outputs != N_CLASSES:
        raise UserError(f'--arch {arch}: its last layer, {name}, has {n_outputs} outputs; expected a classifier of '
                        f'{N_CLASSES} classes, which the embedding layer replaces')
    network.set_submodule(name, torch.nn.Identity())
    return name


@dataclass
class Backbone:
    """
    network:  normalised images [B, 3, H, W] -> pooled features [B, F], without a classifier.
    size:     the side of its input images in pixels.
    mean, std: per channel, of images in [0, 1], in the channel order of the network.
    bgr:      whether that order is blue, green, red.
    head:     name prefixes of the removed classifiers in weight files.
    renamed:  {name prefix in weight files: the network's name prefix}, where they differ.
    download: () -> the pretrained state dict; None where there is none.
    n_features: F; select_backbone finds it.
    maps:     the name of the module whose input (0) or output (1) are the last feature maps, and which of the two;
              n_maps: their number. Both are None where there are none; select_backbone finds them.
    """
    network: torch.nn.Module
    size: int
    mean: tuple = IMAGENET_MEAN
    std: tuple = IMAGENET_STD
    bgr: bool = False
    head: tuple = ()
    renamed: dict = field(default_factory=dict)
    download: Callable | None = None
    n_features: int | None = None
    maps: tuple | None = None
    n_maps: int | None = None


@contextlib.contextmanager
def last_maps(network):
    """
    A list that receives the feature maps [B, C, h, w] of more than one pixel of each module of the network, when it is
    called: its output, or the input of a module that pools them; as ((name, 0 or 1), C). A linear layer empties the
    list: what is before it are not the last maps.
    """
    found = []

    def are_maps(value):
        return isinstance(value, torch.Tensor) and value.dim() == 4 and value[0, 0].numel() > 1

    def note(name, module, inputs, output):
        if are_maps(output):
            found.append(((name, 1), output.shape[1]))
        elif isinstance(module, torch.nn.Linear):
            found.clear()
        elif inputs and are_maps(inputs[0]) and not list(module.children()):
            found.append(((name, 0), inputs[0].shape[1]))

    with contextlib.ExitStack() as handles:
        for name, module in network.named_modules():
            if name:
                handles.enter_context(module.register_forward_hook(functools.partial(note, name)))
        yield found


@torch.no_grad()
def count_features(backbone, arch):
    """
    Backbone.n_features, maps and n_maps, from one black image. Raises UserError where the network takes no images of
    its --input_size, and where it gives anything but one vector per image.
    """
    try:
        with last_maps(backbone.network) as found:
            output = backbone.network.eval()(torch.zeros(1, 3, backbone.size, backbone.size))
    except (RuntimeError, AssertionError) as error:
        raise UserError(f'--input_size {backbone.size}: the network cannot process images of this size ({error})'
                        ) from None
    shape = list(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if not isinstance(shape, list) or shape[1:] != [output.numel(), *[1] * (len(shape) - 2)]:
        raise UserError(f'--arch {arch}: its output for one image is {shape}; expected pooled features [1, F]')
    # the number of maps does not divide F in networks whose channels come last, and after a further convolution
    maps, n_maps = found[-1] if found and output.numel() % found[-1][1] == 0 else (None, None)
    return output.numel(), maps, n_maps


class EmbeddingNetwork(torch.nn.Module):
    """
    Images [B, 3, H, W], RGB in [0, 1] -> embeddings [B, --embed_dim], pooled backbone features [B, F] and, with_maps,
    the last feature maps [B, C, h, w]. double: the features are the average plus the maximum of these maps.
    """

    def __init__(self, opt, backbone, frozen, normalize, double=False):
        super().__init__()
        self.maps, self.double = backbone.maps, double
        self.backbone, self.input_size, self.frozen, self.normalize = backbone.network, backbone.size, frozen, normalize
        self.bgr, self.warming_up = backbone.bgr, False
        for name in ('mean', 'std'):
            self.register_buffer(name, torch.tensor(getattr(backbone, name)).view(1, 3, 1, 1), persistent=False)
        n_features = backbone.n_maps if double else backbone.n_features
        self.f_embed = embedding_layer([n_features, *opt.embed_layers, opt.embed_dim])

    def start_epoch(self, warming_up):
        """
        Training mode. In an epoch of the --warmup, the backbone is in evaluation mode and gets no gradients. Which of
        its parameters require gradients is never changed: what was frozen on purpose stays frozen.
        """
        self.warming_up = warming_up
        self.train()

    def train(self, mode=True):
        """As in torch, but a `_frozen` network's BatchNorm layers keep their running statistics, not their weights."""
        super().train(mode)
        if self.warming_up:
            self.backbone.eval()
        elif self.frozen:
            for module in self.backbone.modules():
                if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def forward(self, images, with_maps=False):
        if self.bgr:
            images = images.flip(1)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not (self.training and self.warming_up)):
            features, maps = self.features((images - self.mean) / self.std, with_maps or self.double)
        embeddings = self.f_embed(features)
        return (F.normalize(embeddings, dim=1) if self.normalize else embeddings), features, *[maps] * with_maps

    def features(self, images, with_maps):
        """Normalised images -> pooled features [B, F] and the last feature maps [B, C, h, w], or None without them."""
        if not with_maps:
            return self.backbone(images).flatten(1), None
        (name, place), kept = self.maps, []
        hook = self.backbone.get_submodule(name).register_forward_hook(
            lambda module, inputs, output: kept.append(output if place else inputs[0]))
        with hook:
            features = self.backbone(images).flatten(1)
        maps, = kept
        return maps.mean(dim=(2, 3)) + maps.amax(dim=(2, 3)) if self.double else features, maps
