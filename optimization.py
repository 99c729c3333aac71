"""The optimizer of a run, and its learning rates as a function of the flags and the epoch."""
import math

import torch

import criteria


def select(opt, model, criterion):
    """The optimizer --optim over backbone, embedding layer and criterion, and the Schedule of its rates."""
    fc_lr = opt.lr if opt.fc_lr < 0 else opt.fc_lr
    groups = [{'name': name, 'params': list(module.parameters()), 'lr': lr, 'weight_decay': opt.decay}
              for name, module, lr in (('backbone', model.backbone, opt.lr), ('embedding', model.f_embed, fc_lr))]
    groups += [{'name': 'criterion', 'weight_decay': opt.loss_decay} | group
               for group in criteria.parameter_groups(criterion)]
    optimizer = {'adam': lambda: torch.optim.Adam(groups), 'adamw': lambda: torch.optim.AdamW(groups),
                 'sgd': lambda: torch.optim.SGD(groups, momentum=opt.momentum),
                 'rmsprop': lambda: torch.optim.RMSprop(groups, momentum=opt.momentum)}[opt.optim]()
    update_rows_of_sparse(optimizer)
    return optimizer, Schedule(opt, optimizer)


def update_rows_of_sparse(optimizer):
    """
    Makes the optimizer update, of a parameter with a sparse gradient, only the rows that the gradient has, together
    with the moments of these rows: for the time of a step, they take the place of the parameter and its state.
    """
    replaced = []

    def take_rows(*_):
        for group in optimizer.param_groups:
            for place, whole in enumerate(group['params']):
                if whole.grad is None or not whole.grad.is_sparse:
                    continue
                rows, gradient = rows_of(whole.grad)
                part = torch.nn.Parameter(whole.detach().index_select(0, rows))
                part.grad, group['params'][place] = gradient, part
                if whole in optimizer.state:
                    optimizer.state[part] = {name: value.index_select(0, rows) if are_moments(value, whole) else value
                                             for name, value in optimizer.state[whole].items()}
                replaced.append((group['params'], place, whole, part, rows))

    @torch.no_grad()
    def put_rows(*_):
        while replaced:
            params, place, whole, part, rows = replaced.pop()
            params[place], state = whole, optimizer.state[whole]
            whole.index_copy_(0, rows, part)
            for name, value in optimizer.state.pop(part).items():
                if not are_moments(value, part):
                    state[name] = value
                    continue
                if name not in state:
                    state[name] = torch.zeros_like(whole)
                state[name].index_copy_(0, rows, value)

    optimizer.register_step_pre_hook(take_rows)
    optimizer.register_step_post_hook(put_rows)


def rows_of(gradient):
    """The rows that a sparse gradient [C, ...] has, [S] in ascending order, and their values [S, ...]."""
    rows, values = gradient._indices()[0], gradient._values()
    if (rows[1:] > rows[:-1]).all():             # autograd forgets that it is coalesced, and coalesce() is slow
        return rows, values
    gradient = gradient.coalesce()
    return gradient.indices()[0], gradient.values()


def are_moments(value, parameter):
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape


def gradients(optimizer):
    """The gradients of the optimizer's parameters, of a sparse one its values."""
    found = [parameter.grad for group in optimizer.param_groups for parameter in group['params']
             if parameter.grad is not None]
    return [rows_of(gradient)[1] if gradient.is_sparse else gradient for gradient in found]


class Schedule:
    """
    Sets the learning rates and weight decays of an optimizer's groups before each epoch. They depend on the flags and
    the epoch alone, so that a resumed run has the rates that its flags ask for, whatever its checkpoint was saved with.
    """

    def __init__(self, opt, optimizer):
        self.opt, self.optimizer = opt, optimizer
        self.initial = [{'lr': group['lr'], 'weight_decay': group['weight_decay']} for group in optimizer.param_groups]

    def start(self, epoch):
        """epoch: the one that begins, from 1."""
        factor = self.factor(epoch - 1)
        for group, initial in zip(self.optimizer.param_groups, self.initial, strict=True):
            group.update(initial, lr=initial['lr'] * factor)

    def factor(self, n_trained):
        """What --scheduler multiplies all learning rates with after n_trained epochs."""
        if self.opt.scheduler == 'step':
            return self.opt.gamma ** sum(n_trained >= epoch for epoch in self.opt.tau)
        if self.opt.scheduler == 'cosine':
            return (1 + math.cos(math.pi * min(1, n_trained / self.opt.n_epochs))) / 2 if n_trained else 1
        return 1

    def rates(self):
        """{'lr': of the backbone, 'lr/<group>': of each group}, as in force."""
        groups = self.optimizer.param_groups
        return {'lr': groups[0]['lr']} | {f'lr/{group["name"]}': group['lr'] for group in groups}
