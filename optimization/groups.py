"""The parameter groups of a network, and the parameters of optimizers."""
import torch

from utilities.errors import UserError


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
        places = model.block_numbers()
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


def check_once(groups, own):
    """Raises UserError for a parameter in the groups and in a criterion's own optimizer, or in two of the latter."""
    if not own:
        return
    trained = [id(parameter) for optimizer in own for parameter in optimizer_parameters(optimizer)]
    for group in groups:
        params = group['params']
        group['params'] = [params] if isinstance(params, torch.Tensor) else list(params)     # a generator is read once
        trained += map(id, group['params'])
    if len(trained) > len({*trained}):
        raise UserError('a parameter of the criterion is trained twice: leave the parameters of each of its '
                        'optimizers() out of its optim_dict_list, and of its other optimizers')


def optimizer_parameters(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group['params']]
