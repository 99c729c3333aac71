"""
The optimizers of a run: OPTIMIZERS, and select(), which builds them with the Schedule of their learning rates. Also
whether the state of an optimizer from a checkpoint fits, and how it is adapted to the parameters' memory layout.
"""
import argparse
import inspect

import torch

from optimization.groups import check_once, network_groups
from optimization.schedule import Schedule
from utilities import device
from utilities.errors import UserError, nearest
from utilities.mined import optimizers

# {optimizer of torch.optim that cannot train a run: why}
UNFIT = {'lbfgs': 'it computes the loss several times in a step, by a closure, and a run computes it once',
         'sparseadam': 'it takes sparse gradients, which no network or loss here has'}
# {name in lower case: class}
OPTIMIZERS = {name.lower(): kind for name, kind in sorted(vars(torch.optim).items(), key=lambda item: item[0].lower())
              if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)
              and name.lower() not in ('optimizer', *UNFIT)}
# entries of a parameter group that the groups, the schedule or the device determine
OF_RUN = {'params', 'name', 'lr', 'weight_decay', 'fused', 'foreach', 'capturable'}


def optimizer_name(text):
    """An argparse type: the name of an optimizer of torch.optim, in lower case."""
    name = text.lower()
    if name in OPTIMIZERS:
        return name
    if name in UNFIT:
        raise argparse.ArgumentTypeError(f'{text} of torch.optim does not work here: {UNFIT[name]}')
    raise argparse.ArgumentTypeError(f'{text} is unknown; choose from {", ".join(OPTIMIZERS)}'
                                     f'{nearest(name, OPTIMIZERS)}')


def select(opt, model, criterion, n_steps=1, more=()):
    """
    The optimizer --optim of backbone, embedding layer and criterion, and the Schedule of its learning rates; with
    --embed_optim or --loss_optim, the embedding layer or the criterion has an optimizer of its own, in
    Schedule.further. n_steps: number of steps per epoch. more: optimizer groups of other parts, which have names.
    """
    network = [{'weight_decay': opt.decay} | group for group in network_groups(opt, model)]
    own = [{'name': 'criterion', 'weight_decay': opt.loss_decay} | group
           for group in criterion.parameter_groups()]
    by_criterion = optimizers(criterion)
    check_once(network + own + [*more], by_criterion)
    for optimizer in by_criterion:
        if type(optimizer) in OPTIMIZERS.values():           # the names of the state of others are not known
            note_settings(optimizer)
            optimizer.register_load_state_dict_pre_hook(require_kind)
    embedding = [group for group in network if group['name'].startswith('embedding')]
    groups = [group for group in network if not group['name'].startswith('embedding')]
    further = {}
    for part, of_part in (('embed', embedding), ('loss', own)):
        if not of_part or getattr(opt, f'{part}_optim') is None:
            groups += of_part
        else:
            further[f'{part}_optimizer'] = build(opt, f'{part}_optim', of_part)
    groups += [{'weight_decay': opt.decay} | group for group in more]
    optimizer = build(opt, 'optim', groups)
    return optimizer, Schedule(opt, optimizer, n_steps, further)


def build(opt, flag, groups):
    """The optimizer of --optim, --embed_optim or --loss_optim, `flag`, of these parameter groups."""
    name = getattr(opt, flag)
    own = dict(*getattr(opt, f'{flag}_args'))
    default = {}
    if device.is_gpu(opt.device) and name in ('adam', 'adamw', 'sgd') and not own.get('foreach'):
        default['fused'] = True                                                        # one kernel
    try:
        optimizer = OPTIMIZERS[name](groups, **default | arguments_of_flags(opt, flag) | own)
    except (ValueError, RuntimeError) as error:                # Muon takes matrices only
        raise UserError(f'--{flag} {name}: {" ".join(str(error).split())[:200]}') from None
    note_settings(optimizer)
    optimizer.register_load_state_dict_pre_hook(adapted)
    return optimizer


def arguments_of_flags(opt, flag):
    """The arguments of the optimizer of `flag` that have flags of their own, beside learning rate and weight decay."""
    name = getattr(opt, flag)
    if name in ('adam', 'adamw'):
        return {'eps': opt.adam_eps}
    return {'momentum': opt.momentum} if name in ('sgd', 'rmsprop') else {}


def check_arguments(opt):
    """Raises UserError for optimizer arguments that have flags of their own, or that torch does not take."""
    for flag in ('optim', 'embed_optim', 'loss_optim'):
        name = getattr(opt, flag)
        given = getattr(opt, f'{flag}_args')
        if len(given) > 1:
            raise UserError(f'--{flag}_args: expected one mapping, not {len(given)}')
        if not given or name is None:
            continue
        by_flags = arguments_of_flags(opt, flag)
        with_flags = {'lr', 'weight_decay'}
        if flag == 'optim':
            with_flags |= by_flags.keys()
        if given[0].keys() & with_flags:
            raise UserError(f'--{flag}_args {given[0]}: --lr, --decay, --momentum and --adam_eps give the learning '
                            'rate, weight decay, momentum and eps')
        try:
            OPTIMIZERS[name]([torch.zeros(2, 2)], **by_flags | given[0])
        except Exception as error:                                        # torch raises anything
            raise UserError(f'--{flag}_args {given[0]}: {" ".join(str(error).split())[:200]}; the arguments are those '
                            f'of torch.optim.{OPTIMIZERS[name].__name__}') from None


# The state from a checkpoint

def adapted(optimizer, state):
    """
    The state in the memory layouts of this optimizer's parameters. Settings are taken from the state, since training
    may have changed them, except those in OF_RUN and those whose flags have changed since. Raises ValueError as
    require_kind() does.
    """
    require_kind(optimizer, state)
    groups = []
    values = dict(state['state'])
    for saved, own in zip(state['param_groups'], optimizer.param_groups, strict=True):
        for number, parameter in zip(saved['params'], own['params'], strict=True):
            if values.get(number):
                values[number] = {name: laid_out(value, parameter) for name, value in values[number].items()}
        given = saved.get('as_built', {})
        kept = {name: saved[name] for name, value in own['as_built'].items() if name in given and given[name] == value}
        groups.append(saved | own | kept | {'params': saved['params']})
    return state | {'param_groups': groups, 'state': values}


def note_settings(optimizer):
    """Writes the kind and the settings of a new optimizer into its parameter groups, which a checkpoint keeps."""
    for group in optimizer.param_groups:
        group['as_built'] = {name: value for name, value in group.items() if name not in OF_RUN}
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
    """The settings of a parameter group that need a state of their own: whether the optimizer was built with each."""
    built = group.get('as_built', group)
    return [bool(built.get(name)) for name in ('decoupled_weight_decay', 'amsgrad', 'centered', 'momentum')]


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
