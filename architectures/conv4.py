"""Four convolutional blocks of 64 filters for small images, as in few-shot learning. Vinyals et al., NIPS 2016."""
import torch

from architectures.embedding_network import Backbone


def block(n_in):
    # pooling before the ReLU gives the same values and gradients to the bit, with a quarter of the ReLU's work
    return torch.nn.Sequential(torch.nn.Conv2d(n_in, 64, 3, padding=1, bias=False), torch.nn.BatchNorm2d(64),
                               torch.nn.MaxPool2d(2), torch.nn.ReLU(inplace=True))


def backbone(opt):
    """
    The 64 maps of the last block are not pooled, unless --pool asks for it: images of 32 pixels give 64 x 2 x 2 = 256
    features.
    """
    network = torch.nn.Sequential(block(3), block(64), block(64), block(64), torch.nn.Flatten())
    return Backbone(network, opt.input_size or 32, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5),
                    maps=lambda network, images: network[:-1](images))
