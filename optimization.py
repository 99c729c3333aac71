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
    fused = {'fused': True} if opt.device.type == 'cuda' else {}                 # one kernel for all parameters
    optimizer = {'adam': lambda: torch.optim.Adam(groups, **fused), 'adamw': lambda: torch.optim.AdamW(groups, **fused),
                 'sgd': lambda: torch.optim.SGD(groups, momentum=opt.momentum, **fused),
                 'rmsprop': lambda: torch.optim.RMSprop(groups, momentum=opt.momentum)}[opt.optim]()
    optimizer.register_load_state_dict_pre_hook(as_built)
    return optimizer, Schedule(opt, optimizer)


def as_built(optimizer, state):
    """The state with the optimizer's own `fused`, since a checkpoint may be of another kind of device."""
    own = [{name: group[name] for name in ('fused',) if name in group} for group in optimizer.param_groups]
    return state | {'param_groups': [saved | fused
                                     for saved, fused in zip(state['param_groups'], own, strict=True)]}


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
