"""BatchNorm layers in a batch that is embedded in several pieces or by several processes."""
from contextlib import contextmanager

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from utilities import processes
from utilities.errors import UserError

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


def share(opt, model):
    """
    For a batch that is embedded in several parts, with BatchNorm layers that are not frozen: on GPUs with one piece per
    process, makes the statistics of these layers those of the whole batch; otherwise prints that they are not.
    """
    largest = -(-opt.bs // processes.count())
    in_pieces = 0 < opt.micro_bs < largest
    is_frozen = model.frozen or '' in model.kept
    parts = [*(() if is_frozen else [model.backbone]), model.f_embed, model.inner]
    parts = [part for part in parts if part is not None and has_any(part)]
    if not parts or not (in_pieces or processes.count() > 1):
        return
    if opt.device.type == 'cuda' and not in_pieces:
        if opt.bs < processes.count():
            raise UserError(f'--bs {opt.bs}: BatchNorm that is not frozen needs at least one image for each of the '
                            f'{processes.count()} processes; use a larger batch or fewer processes')
        for part in parts:
            synchronise(part)
    elif processes.is_main():
        print(f'Note: BatchNorm uses the statistics of at most {min(opt.micro_bs or largest, largest)} images at a '
              f'time, not of the whole batch of {opt.bs}; '
              + ('--embed_norm layer does not depend on the batch' if is_frozen
                 else f'--arch {opt.arch}_frozen keeps them fixed'))
