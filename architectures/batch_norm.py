"""BatchNorm layers of a batch that is embedded in several pieces or by several processes."""
from contextlib import contextmanager

import torch
from torch.nn.modules.batchnorm import _BatchNorm

OF_TORCH = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)


def has_any(network):
    return any(isinstance(module, _BatchNorm) for module in network.modules())


def training_layers(model):
    """The BatchNorm layers that normalise by the statistics of their input and keep running averages of them."""
    return [module for module in model.modules()
            if isinstance(module, _BatchNorm) and module.training and module.track_running_stats]


@contextmanager
def without_tracking(layers):
    """In the block, the running statistics of `layers` are not updated."""
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


def synchronise(network):
    """Replaces the network's BatchNorm layers by layers that use the statistics of the whole batch on all GPUs."""
    if all(type(module) in OF_TORCH for module in network.modules() if isinstance(module, _BatchNorm)):
        torch.nn.SyncBatchNorm.convert_sync_batchnorm(network)
    else:
        import timm.layers  # its BatchNorm layers contain the activation, which torch would drop
        timm.layers.convert_sync_batchnorm(network)
