"""BatchNorm layers in a batch that is embedded in several pieces or by several processes."""
import itertools
from contextlib import contextmanager

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from utilities import device, exchange, processes
from utilities.errors import UserError
from utilities.image_size import sides

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


def join_statistics(layers, fraction):
    """
    Replaces the running statistics of `layers` by their means over the processes, weighted by the `fraction` of the
    batch that each embeds. Layers that are synchronised have the same statistics in all processes already.
    """
    if processes.count() == 1:
        return
    statistics = [statistic for layer in layers if not isinstance(layer, torch.nn.SyncBatchNorm)
                  for statistic in (layer.running_mean, layer.running_var)]
    for statistic in statistics:
        statistic.mul_(fraction)
    if statistics:
        exchange.add_up(statistics)


def synchronise(network):
    """Replaces the network's BatchNorm layers by layers that use the statistics of the whole batch on all GPUs."""
    if all(type(module) in OF_TORCH for module in network.modules() if isinstance(module, _BatchNorm)):
        torch.nn.SyncBatchNorm.convert_sync_batchnorm(network)
    else:
        import timm.layers  # its BatchNorm layers contain the activation, which torch would drop
        timm.layers.convert_sync_batchnorm(network)


@contextmanager
def used_by_one(network):
    """In the block, which one process executes, a BatchNorm layer that would wait for the others raises UserError."""
    def refuse(layer, inputs):
        if layer.training:
            raise UserError('the loss calls the embedding layer (f_embed) in process 0 only, where its BatchNorm would '
                            'wait for the other processes: start one process, or use --embed_norm layer or none')
    hooks = [module.register_forward_pre_hook(refuse) for module in network.modules()
             if isinstance(module, torch.nn.SyncBatchNorm)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def share(opt, model):
    """
    For a batch that is embedded in several pieces, with BatchNorm layers that are not frozen: lets these layers use the
    statistics of the whole batch on GPUs with one piece per process; otherwise prints that they do not.
    """
    largest = -(-opt.bs // processes.count())
    in_pieces = 0 < opt.micro_bs < largest
    is_frozen = model.frozen or '' in model.kept
    parts = [*(() if is_frozen else [model.backbone]), model.f_embed, model.inner]
    parts = [part for part in parts if part is not None and has_any(part)]
    if not parts or not (in_pieces or processes.count() > 1):
        return
    if device.is_gpu(opt.device) and not in_pieces:
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


def smallest_piece(opt):
    """The number of images in the smallest piece of a batch of --bs images."""
    limits = exchange.bounds(opt.bs)
    parts = [max(1, end - start) for start, end in itertools.pairwise(limits)]         # an empty part has a dummy image
    return min(part // -(-part // (opt.micro_bs or part)) for part in parts)


@torch.no_grad()
def check_pieces(opt, model):
    """
    Raises UserError if a piece of the batch has one image and a BatchNorm layer would get a single value per channel,
    which has no variance. Layers on maps get more values, even from one image.
    """
    largest = -(-opt.bs // processes.count())
    is_synchronised = device.is_gpu(opt.device) and processes.count() > 1 and not 0 < opt.micro_bs < largest
    if not opt.n_epochs or is_synchronised or smallest_piece(opt) > 1:
        return
    modes, lone = [(module, module.training) for module in model.modules()], []
    layers = training_layers(model.train())
    names = [name for name, module in model.named_modules() if module in layers]
    hooks = [layer.register_forward_pre_hook(
        lambda layer, inputs, name=name: lone.append(name) if inputs[0].numel() == inputs[0].shape[1] else None)
        for layer, name in zip(layers, names, strict=True)]
    model.eval()(torch.zeros(1, 3, *sides(model.input_size), device=opt.device))
    for hook in hooks:
        hook.remove()
    for module, mode in modes:
        module.training = mode
    if lone:
        given = [f'--bs {opt.bs}', *([f'--micro_bs {opt.micro_bs}'] if opt.micro_bs else []),
                 *([f'{processes.count()} processes'] if processes.count() > 1 else [])]
        raise UserError(f'{" with ".join(given)}: a piece of the batch has a single image, and the BatchNorm layer '
                        f'{lone[0]} needs two to normalise; change --bs or --micro_bs so that each piece has two')
