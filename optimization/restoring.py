"""The state of an optimizer, as a checkpoint has it: whether it fits, and in the memory layout of the parameters."""
import inspect

import torch


def as_built(optimizer, state):
    """
    The state with the settings of this optimizer, which are those of the flags and the device, and with the memory
    layouts of its parameters. Raises ValueError as require_kind() does.
    """
    require_kind(optimizer, state)
    groups = []
    values = dict(state['state'])
    for saved, own in zip(state['param_groups'], optimizer.param_groups, strict=True):
        for number, parameter in zip(saved['params'], own['params'], strict=True):
            if values.get(number):
                values[number] = {name: laid_out(value, parameter) for name, value in values[number].items()}
        groups.append(saved | {name: value for name, value in own.items() if name != 'params'})
    return state | {'param_groups': groups, 'state': values}


def require_kind(optimizer, state):
    """Raises ValueError for the state of another kind of optimizer, or of other parameters."""
    for saved, own in zip(state['param_groups'], optimizer.param_groups, strict=True):
        if kind_of(saved) != kind_of(own):
            raise ValueError('it is the state of another kind of optimizer')
        for number, parameter in zip(saved['params'], own['params'], strict=True):
            of_parameter = state['state'].get(number, {})
            if of_parameter and of_parameter.keys() != state_keys(optimizer, own, parameter.dim()):
                raise ValueError('it is the state of another kind of optimizer')
            if not all(fits(value, parameter) for value in of_parameter.values()):
                raise ValueError('it is the state of parameters of other shapes')


def state_keys(optimizer, group, n_dims):
    """The names of the state that an optimizer keeps of a parameter, found by a step of a new one of its kind."""
    parameter = torch.nn.Parameter(torch.zeros((2,) * n_dims))
    parameter.grad = torch.zeros_like(parameter)
    arguments = inspect.signature(type(optimizer)).parameters
    settings = {name: value for name, value in group.items() if name in arguments and name != 'params'}
    settings |= {name: False for name in ('fused', 'foreach', 'capturable') if name in settings}
    other = type(optimizer)([parameter], **settings)
    other.step()
    return other.state[parameter].keys()


def fits(value, parameter):
    """Whether a part of an optimizer's state belongs to a parameter; Adafactor's have one row or one column of it."""
    if not isinstance(value, torch.Tensor) or not value.dim():
        return True
    return value.dim() == parameter.dim() and all(
        size in (1, own) for size, own in zip(value.shape, parameter.shape, strict=True))


def laid_out(value, parameter):
    """
    A part of an optimizer's state in the memory layout of its parameter, which fused optimizers assume. A run on the
    CPU has the layout channels last, a run on a GPU has not.
    """
    if not isinstance(value, torch.Tensor) or value.shape != parameter.shape or value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)


def kind_of(group):
    """What tells apart, in a parameter group, the kinds of --optim and the settings that need a state of their own."""
    names = ('betas', 'alpha', 'nesterov', 'momentum_decay', 'amsgrad', 'rho', 'beta2_decay', 'lr_decay', 'lambd',
             'etas', 'ns_steps')
    switches = ('decoupled_weight_decay', 'amsgrad', 'centered', 'momentum')
    return [name in group for name in names], [bool(group.get(name)) for name in switches]
