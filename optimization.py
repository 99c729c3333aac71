"""The optimizers of a run, their learning rates as a function of flags and step, the moving average of the weights."""
import argparse
import copy
import inspect
import math

import torch

import criteria
from architectures import depth
from utilities import device, exchange, processes
from utilities.errors import UserError, nearest

ONE_CYCLE_START = 1 / 25                # the first factor of --scheduler onecycle, as in torch


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


def select(opt, model, criterion, n_steps=1):
    """
    The optimizer --optim of backbone, embedding layer and criterion, and the Schedule of its learning rates; with
    --embed_optim or --loss_optim, the embedding layer or the criterion has an optimizer of its own, in
    Schedule.further. n_steps: number of steps per epoch.
    """
    network = [{'weight_decay': opt.decay} | group for group in network_groups(opt, model)]
    own = [{'name': 'criterion', 'weight_decay': opt.loss_decay} | group
           for group in criteria.parameter_groups(criterion)]
    by_criterion = criteria.optimizers(criterion)
    check_once(network + own, by_criterion)
    for optimizer in by_criterion:
        if type(optimizer) in OPTIMIZERS.values():           # the names of the state of others are not known
            optimizer.register_load_state_dict_pre_hook(require_kind)
    embedding = [group for group in network if group['name'].startswith('embedding')]
    groups = [group for group in network if not group['name'].startswith('embedding')]
    further = {}
    for part, of_part in (('embed', embedding), ('loss', own)):
        if not of_part or getattr(opt, f'{part}_optim') is None:
            groups += of_part
        else:
            further[f'{part}_optimizer'] = build(opt, f'{part}_optim', of_part)
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
    optimizer.register_load_state_dict_pre_hook(as_built)
    return optimizer


def arguments_of_flags(opt, flag):
    """The arguments of the optimizer of `flag` that have flags of their own, beside learning rate and weight decay."""
    name = getattr(opt, flag)
    if name in ('adam', 'adamw'):
        return {'eps': opt.adam_eps}
    return {'momentum': opt.momentum} if name in ('sgd', 'rmsprop') else {}


def check_arguments(opt):
    """Raises UserError for arguments of an optimizer that have flags, or with which torch takes no step."""
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
        parameter = torch.nn.Parameter(torch.zeros(2, 2))
        parameter.grad = torch.zeros(2, 2)
        try:
            OPTIMIZERS[name]([parameter], **by_flags | given[0]).step()
        except Exception as error:                                        # torch raises anything
            raise UserError(f'--{flag}_args {given[0]}: {" ".join(str(error).split())[:200]}; the arguments are those '
                            f'of torch.optim.{OPTIMIZERS[name].__name__}') from None


def check_once(groups, own):
    """Raises UserError where a parameter is in the groups and in one of a criterion's own optimizers, or in two."""
    if not own:
        return
    trained = [id(parameter) for optimizer in own for parameter in optimizer_parameters(optimizer)]
    for group in groups:
        params = group['params']
        if isinstance(params, torch.Tensor):
            params = [params]
        trained += map(id, params)
    if len(trained) > len({*trained}):
        raise UserError('a parameter of the criterion is trained twice: leave the parameters of each of its '
                        'optimizers() out of its optim_dict_list, and of its other optimizers')


def network_groups(opt, model):
    """
    The parameter groups of the network: `backbone`, with --layer_decay one group per block, from the last block to the
    first, and `embedding`, which has all other parameters. Parameters that --decay_exclude names are in a separate
    group beside each of these.
    """
    backbone = dict(model.backbone.named_parameters(prefix='backbone'))
    head = {name: parameter for name, parameter in model.named_parameters() if name not in backbone}
    fc_lr = opt.lr if opt.fc_lr < 0 else opt.fc_lr
    if opt.layer_decay == 1:
        parts = [('backbone', backbone, opt.lr)]
    else:
        places = depth.depths(model.backbone)
        last = max(places.values())
        parts = []
        for place in range(last, -1, -1):
            group = 'backbone' if place == last else f'backbone_{place}'
            named = {f'backbone.{name}': backbone[f'backbone.{name}'] for name in places if places[name] == place}
            parts.append((group, named, opt.lr * opt.layer_decay ** (last - place)))
    excluded = without_decay(opt, model)
    groups = []
    for group, named, lr in [*parts, ('embedding', head, fc_lr)]:
        rest = [parameter for name, parameter in named.items() if name not in excluded]
        groups += [{'name': group, 'params': rest, 'lr': lr}]
        undecayed = [parameter for name, parameter in named.items() if name in excluded]
        if undecayed:
            groups += [{'name': f'{group}_no_decay', 'params': undecayed, 'lr': lr, 'weight_decay': 0.0}]
    return groups


def without_decay(opt, model):
    """The names of the parameters of --decay_exclude."""
    excluded = {'norms': set(), 'biases': {name for name, _ in model.named_parameters() if name.endswith('bias')}}
    for name, module in model.named_modules():
        if 'Norm' in type(module).__name__:
            excluded['norms'] |= {f'{name}.{parameter}' for parameter, _ in module.named_parameters(recurse=False)}
    return set().union(*(excluded[kind] for kind in opt.decay_exclude))


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


def optimizer_parameters(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group['params']]


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


class Schedule:
    """
    Sets the learning rates and weight decays of the optimizers' groups before each step. They depend only on the flags
    and the number of the step, so that a resumed run uses the rates of its flags, not the checkpoint's rates.

    n_steps: number of steps per epoch. further: {name: optimizer}, the optimizers of --embed_optim and --loss_optim.
    """

    def __init__(self, opt, optimizer, n_steps=1, further=None):
        self.opt = opt
        self.optimizer = optimizer
        self.n_steps = n_steps
        self.further = further or {}
        self.initial = [{'lr': group['lr'], 'weight_decay': group['weight_decay']} for group in self.groups]

    @property
    def groups(self):
        """The groups of all optimizers; a restored optimizer has new ones."""
        return [group for optimizer in (self.optimizer, *self.further.values()) for group in optimizer.param_groups]

    def at(self, step):
        """Sets the rates of a step; steps are counted from 1, over all epochs."""
        factor = self.factor(step)
        for group, initial in zip(self.groups, self.initial, strict=True):
            group.update(initial, lr=initial['lr'] * factor)

    def factor(self, step):
        """The factor by which --scheduler and --lr_warmup multiply all learning rates in a step."""
        n_warmup = self.opt.lr_warmup
        if n_warmup and self.opt.lr_warmup_unit == 'epochs':
            n_warmup *= self.n_steps
        factor = self.scheduled(step)
        if step < n_warmup:
            factor *= step / n_warmup
        return factor

    def scheduled(self, step):
        """The factor of --scheduler; step and cosine change after whole epochs, onecycle in each step."""
        opt = self.opt
        n_trained = (step - 1) // self.n_steps                           # epochs
        if opt.scheduler == 'step':
            return opt.gamma ** sum(n_trained >= epoch for epoch in opt.tau)
        if opt.scheduler == 'cosine':
            n_annealed = n_trained - opt.cosine_delay
            floor = opt.lr_floor
            return between(1, floor, min(1, n_annealed / opt.n_epochs)) if n_annealed > 0 else 1
        if opt.scheduler == 'onecycle':
            floor = opt.lr_floor
            last = opt.n_epochs * self.n_steps - 1                       # steps counted from 0, as in torch
            peak = opt.onecycle_peak * (last + 1) - 1
            if step - 1 <= peak and peak > 0:
                return between(ONE_CYCLE_START, 1, (step - 1) / peak)
            if peak == last:                                             # the run has a single step
                return 1
            return between(1, floor, min(1, (step - 1 - peak) / (last - peak)))
        return 1

    def rates(self):
        """The present learning rates: {'lr': the backbone's, 'lr/<group>': each group's}."""
        groups = self.groups
        return {'lr': groups[0]['lr']} | {f'lr/{group["name"]}': group['lr'] for group in groups}


def between(first, last, progress):
    """From first to last along half a cosine, for progress from 0 to 1."""
    return last + (first - last) * ((1 + math.cos(math.pi * progress)) / 2)


class MovingAverage:
    """
    A copy of the network. Each weight and BatchNorm statistic is an exponential moving average of the network's: after
    each step, average = decay * average + (1 − decay) * weight.
    """

    def __init__(self, network, decay):
        self.network = network
        self.decay = decay
        self.average = copy.deepcopy(network).requires_grad_(False)

    @torch.no_grad()
    def update(self):
        """To be called after each step of the optimizer."""
        for mean, value in zip(self.average.state_dict().values(), self.network.state_dict().values(), strict=True):
            if mean.is_floating_point():
                mean.lerp_(value, 1 - self.decay)
            else:
                mean.copy_(value)
