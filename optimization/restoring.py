"""The state of an optimizer from a checkpoint: whether it fits; its adaptation to the parameters' memory layout."""
import torch


def as_built(optimizer, state):
    """
    The state, with this optimizer's own settings (of flags and device) and the memory layouts of its parameters. Raises
    ValueError as require_kind() does.
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


def name_kind(optimizer):
    """Writes the kind of an optimizer into its parameter groups, which a checkpoint keeps."""
    for group in optimizer.param_groups:
        group['kind'] = type(optimizer).__name__


def require_kind(optimizer, state):
    """Raises ValueError for the state of another kind of optimizer, or of other parameters."""
    for saved, own in zip(state['param_groups'], optimizer.param_groups, strict=True):
        if saved.get('kind', own['kind']) != own['kind'] or switches(saved) != switches(own):
            raise ValueError('it is the state of another kind of optimizer')
        for number, parameter in zip(saved['params'], own['params'], strict=True):
            if not all(fits(value, parameter) for value in state['state'].get(number, {}).values()):
                raise ValueError('it is the state of parameters of other shapes')


def switches(group):
    """The settings of a parameter group that need a state of their own: whether each is on."""
    return [bool(group.get(name)) for name in ('decoupled_weight_decay', 'amsgrad', 'centered', 'momentum')]


def fits(value, parameter):
    """Whether a part of an optimizer's state has the shape of a parameter, or one row or column of it (Adafactor)."""
    if not isinstance(value, torch.Tensor) or not value.dim():
        return True
    return value.dim() == parameter.dim() and all(
        size in (1, own) for size, own in zip(value.shape, parameter.shape, strict=True))


def laid_out(value, parameter):
    """
    A part of an optimizer's state in the memory layout of its parameter, which fused optimizers assume. The layout
    is channels last in a run on the CPU, and contiguous on a GPU.
    """
    if not isinstance(value, torch.Tensor) or value.shape != parameter.shape or value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)
