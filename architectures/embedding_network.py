"""The network that is trained: a backbone, its input format, and the embedding layer on its pooled features."""
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from utilities.errors import UserError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def embedding_layer(widths):
    """widths [F, ..., D] -> a linear layer for two widths, for more an MLP with ReLU between its linear layers."""
    layers = [torch.nn.Linear(n_in, n_out) for n_in, n_out in itertools.pairwise(widths)]
    between = [part for layer in layers for part in (torch.nn.ReLU(), layer)][1:]
    return layers[0] if len(layers) == 1 else torch.nn.Sequential(*between)


@dataclass
class Backbone:
    """
    network:  normalised images [B, 3, H, W] -> pooled features [B, F]; the classifier is removed.
    size:     height and width of its input images, in pixels.
    mean, std: per channel, for images in [0, 1], in the channel order of the network.
    bgr:      whether that order is blue, green, red.
    head:     name prefixes of the removed classifier in weight files.
    download: () -> the pretrained state dict; None if there is none.
    """
    network: torch.nn.Module
    size: int
    mean: tuple = IMAGENET_MEAN
    std: tuple = IMAGENET_STD
    bgr: bool = False
    head: tuple = ()
    download: Callable | None = None


class EmbeddingNetwork(torch.nn.Module):
    """Images [B, 3, H, W], RGB in [0, 1] -> embeddings [B, --embed_dim], pooled backbone features [B, F]."""

    def __init__(self, opt, backbone, frozen, normalize):
        super().__init__()
        self.backbone, self.input_size, self.frozen, self.normalize = backbone.network, backbone.size, frozen, normalize
        self.bgr = backbone.bgr
        for name in ('mean', 'std'):
            self.register_buffer(name, torch.tensor(getattr(backbone, name)).view(1, 3, 1, 1), persistent=False)
        self.f_embed = embedding_layer([self.count_features(), *opt.embed_layers, opt.embed_dim])

    @torch.no_grad()
    def count_features(self):
        """F, from a pass of one black image. Raises UserError if the backbone cannot process images of this size."""
        try:
            features = self.backbone.eval()(torch.zeros(1, 3, self.input_size, self.input_size)).flatten(1)
        except (RuntimeError, AssertionError) as error:
            raise UserError(f'--input_size {self.input_size}: the network cannot process images of this size '
                            f'({error})') from None
        return features.shape[1]

    def train(self, mode=True):
        """As in torch, but BatchNorm layers of a `_frozen` network keep their running statistics."""
        super().train(mode)
        if self.frozen:
            for module in self.backbone.modules():
                if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def forward(self, images):
        if self.bgr:
            images = images.flip(1)
        features = self.backbone((images - self.mean) / self.std).flatten(1)
        embeddings = self.f_embed(features)
        return (F.normalize(embeddings, dim=1) if self.normalize else embeddings), features
