"""The network that is trained: a backbone, its input format, and the embedding layer on its pooled features."""
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from architectures import cascade, depth, low_rank, pooling
from architectures.embedding_layer import embedding_layer
from utilities.errors import UserError
from utilities.image_size import sides

N_CLASSES = 1000                        # number of ImageNet's classes
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def remove_classifier(network, arch):
    """
    Replaces the network's last layer by the identity, and returns the layer's name. Raises UserError unless it is a
    linear layer or a convolution that computes the logits of ImageNet's classes.
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
    size:     the size of its input images in pixels, one number or [height, width].
    mean, std: per channel, of images in [0, 1], in the channel order of the network.
    bgr:      whether that order is blue, green, red.
    head:     name prefixes of the removed classifiers in weight files.
    renamed:  {name prefix in weight files: the network's name prefix}, where they differ.
    url:      address of the pretrained state dict, with its hash in the name; None where there is none.
    download: () -> the pretrained state dict, if it is not that of `url`.
    converted: (network, state dict) -> a state dict with the network's names and shapes, as far as the library can
              convert it; None where it converts none.
    maps:     (network, images) -> the input of the pooling: the last maps [B, C, H, W], or the tokens [B, T, C] of a
              ViT; None if this is not known.
    n_prefix: the number of tokens before the patch tokens; the first of them is the class token, if there is one.
    pool:     the pooling of --pool; None for the network's own pooling. select_backbone sets it.
    n_features: F; select_backbone finds it.
    f_embed:  the network's own embedding layer; None if it is made by the flags.
    """
    network: torch.nn.Module
    size: int
    mean: tuple = IMAGENET_MEAN
    std: tuple = IMAGENET_STD
    bgr: bool = False
    head: tuple = ()
    renamed: dict = field(default_factory=dict)
    url: str | None = None
    download: Callable | None = None
    converted: Callable | None = None
    maps: Callable | None = None
    n_prefix: int = 0
    pool: Callable | None = None
    n_features: int | None = None
    f_embed: torch.nn.Module | None = None


@torch.no_grad()
def count_features(backbone, opt, size, given):
    """
    F, found with one black image of the size (height, width); given: the flag and its value from which the size comes.
    Raises UserError if the network cannot process images of this size, if its output is not one vector per image, or if
    --pool does not suit it.
    """
    take = backbone.maps if backbone.pool else torch.nn.Module.__call__
    try:
        output = take(backbone.network.eval(), torch.zeros(1, 3, *size))
    except (RuntimeError, AssertionError) as error:
        raise UserError(f'{given}: the network cannot process images of this size ({error})') from None
    if backbone.pool:
        pooling.check(opt, output)
        output = backbone.pool(output)
    shape = list(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if not isinstance(shape, list) or shape[1:] != [output.numel(), *[1] * (len(shape) - 2)]:
        raise UserError(f'--arch {opt.arch}: its output for one image is {shape}; expected pooled features [1, F]')
    return output.numel()


@torch.no_grad()
def count_maps(backbone):
    """
    The number C of the last feature maps, found with one black image. None if they are not known, have several sizes,
    or are pooled neither by --pool nor by their average.
    """
    if backbone.maps is None:
        return None
    maps = backbone.maps(backbone.network.eval(), torch.zeros(1, 3, *sides(backbone.size)))
    is_one_size = isinstance(maps, torch.Tensor) and maps.dim() == 4
    if is_one_size and (backbone.pool or maps.shape[1] == backbone.n_features):
        return maps.shape[1]
    return None


class EmbeddingNetwork(torch.nn.Module):
    """
    Images [B, 3, H, W], RGB in [0, 1] -> embeddings [B, --embed_dim], pooled backbone features [B, F], and if with_maps
    the maps [B, C, h, w] that were pooled (averaged, if --pool is not given).
    """

    def __init__(self, opt, backbone, frozen, normalize):
        super().__init__()
        self.backbone = backbone.network
        self.input_size = backbone.size
        self.frozen = frozen
        self.normalize = normalize
        self.bgr = backbone.bgr
        self.n_features = backbone.n_features
        self.warmup = opt.warmup
        self.warming_up = False
        for name in ('mean', 'std'):
            self.register_buffer(name, torch.tensor(getattr(backbone, name)).view(1, 3, 1, 1), persistent=False)
        self.maps = backbone.maps
        self.pool = backbone.pool
        self.f_embed = backbone.f_embed
        if self.f_embed is None:
            self.f_embed = embedding_layer(opt, backbone.n_features, opt.embed_dim // (len(opt.cascade) + 1))
        self.inner = cascade.InnerLevels(opt, backbone) if opt.cascade else None
        # names of modules that stay in evaluation mode
        self.kept = [] if opt.freeze == 'none' else depth.freeze(opt, self.backbone)
        if opt.lora_rank:
            self.backbone.requires_grad_(False)
            low_rank.adapt(opt, self.backbone)

    def block_numbers(self):
        """{name of each parameter of the backbone: the number of its block}, as depth.depths gives them."""
        return depth.depths(self.backbone)

    def has_fixed_features(self):
        """
        Whether the embeddings are a function of pooled features that never change: neither the backbone nor the pooling
        is trained, and there are no inner levels.
        """
        return ('' in self.kept and self.inner is None and not isinstance(self.pool, torch.nn.Module)
                and not any(parameter.requires_grad for parameter in self.backbone.parameters()))

    def start_epoch(self, epoch):
        """
        Training mode. epoch: counted from 1. In an epoch of the --warmup, the backbone is in evaluation mode and gets
        no gradients. Which of its parameters require gradients is never changed: what was frozen on purpose stays
        frozen.
        """
        self.warming_up = epoch <= self.warmup
        self.train()

    def train(self, mode=True):
        """
        As in torch, except that the BatchNorm layers of a `_frozen` network keep their running statistics (their
        weights are still trained), and the modules of --freeze stay in evaluation mode.
        """
        super().train(mode)
        if self.warming_up:
            self.backbone.eval()
        elif self.frozen:
            for module in self.backbone.modules():
                if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                    module.eval()
        for name in self.kept:
            self.backbone.get_submodule(name).eval()
        return self

    def forward(self, images, with_maps=False):
        with torch.set_grad_enabled(torch.is_grad_enabled() and not (self.training and self.warming_up)):
            images = self.normalised(images)
            if self.pool or with_maps:
                maps = self.maps(self.backbone, images)
            else:
                features = self.backbone(images).flatten(1)
        if self.pool or with_maps:         # outside the block above: --warmup trains a pooling with parameters too
            features = (self.pool or pooling.average)(maps)
        embeddings = self.embedded(features)
        return (embeddings, features, maps) if with_maps else (embeddings, features)

    def normalised(self, images):
        """RGB in [0, 1] -> the backbone's input: its channel order, mean and standard deviation."""
        return ((images.flip(1) if self.bgr else images) - self.mean) / self.std

    def embedded(self, features):
        """
        Pooled features [B, F] -> embeddings [B, --embed_dim]. With --cascade, the embeddings of the inner levels come
        first, computed in the last pass of the backbone. Each level is normalised on its own; f_embed is the last
        level's layer.
        """
        levels = [*(self.inner() if self.inner else ()), self.f_embed(features)]
        levels = [F.normalize(level, dim=1) for level in levels] if self.normalize else levels
        return torch.cat(levels, dim=1) if self.inner else levels[0]
