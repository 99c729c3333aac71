"""The optimizers of a run: OPTIMIZERS, and select(), which builds them with the Schedule of their learning rates."""
import argparse
import inspect

import torch

from optimization import restoring
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
            restoring.name_kind(optimizer)
            optimizer.register_load_state_dict_pre_hook(restoring.require_kind)
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
    restoring.name_kind(optimizer)
    optimizer.register_load_state_dict_pre_hook(restoring.as_built)
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
