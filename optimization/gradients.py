"""The gradients of a step: summed over processes, unscaled, clipped."""
import torch

from optimization.groups import optimizer_parameters
from utilities import exchange, processes


def existing_gradients(parameters):
    """The gradients of the parameters that have one."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def gradient_or_zeros(tensor):
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


@torch.no_grad()
def add_up(parameters, loss):
    """
    In several processes: replaces the gradients of the parameters and the loss by their sums over the processes. A
    parameter that has a gradient only in some processes, such as by a term of the loss, then has one in all of them.
    """
    if processes.count() == 1:
        return
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    exists = loss.new_tensor([parameter.grad is not None for parameter in trained])
    gradients = [gradient_or_zeros(parameter) for parameter in trained]
    exchange.add_up([*gradients, exists, loss])
    if all(parameter.grad is not None for parameter in trained):       # otherwise the host has to wait for `exists`
        return
    for parameter, gradient, n in zip(trained, gradients, exists.tolist(), strict=True):
        if n:
            parameter.grad = gradient


def unscale(scaler, optimizers, norm):
    """
    Divides the gradients, whose norm is `norm`, by the factor with which an enabled GradScaler has multiplied the loss.
    Returns the norm of the result, and the optimizers that have gradients: all of them skip a step, or none does.
    """
    if not scaler.is_enabled():
        return norm, optimizers
    norm = norm / scaler.scale(torch.ones_like(norm))
    optimizers = [optimizer for optimizer in optimizers if existing_gradients(optimizer_parameters(optimizer))]
    for optimizer in optimizers:
        # the scaler sees only the gradients of this process and optimizer; if others are not finite, NaN tells it so
        gradient = existing_gradients(optimizer_parameters(optimizer))[0]
        gradient.add_(norm * 0)
        scaler.unscale_(optimizer)
    return norm, optimizers


def clip(opt, parameters, norm):
    """--clip_grad and --clip_grad_value of the gradients, in place. norm: the norm of the gradients."""
    if opt.clip_grad:
        torch.nn.utils.clip_grads_with_norm_(parameters, opt.clip_grad, norm)
    if opt.clip_grad_value:
        torch.nn.utils.clip_grad_value_(parameters, opt.clip_grad_value)
