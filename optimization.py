"""The optimizer of a run, and its learning rates as a function of the flags and the epoch."""
import math

import torch

import criteria


def select(opt, model, criterion):
    """The optimizer --optim over backbone, embedding layer and criterion, and the Schedule of its rates."""
    fc_lr = opt.lr if opt.fc_lr < 0 else opt.fc_lr
    head = [parameter for name, parameter in model.named_parameters() if not name.startswith('backbone.')]
    groups = [{'name': name, 'params': parameters, 'lr': lr, 'weight_decay': opt.decay}
              for name, parameters, lr in (('backbone', list(model.backbone.parameters()), opt.lr),
                                           ('embedding', head, fc_lr))]
    groups += [{'name': 'criterion', 'weight_decay': opt.loss_decay} | group
               for group in criteria.parameter_groups(criterion)]
    optimizer = {'adam': lambda: torch.optim.Adam(groups), 'adamw': lambda: torch.optim.AdamW(groups),
                 'sgd': lambda: torch.optim.SGD(groups, momentum=opt.momentum),
                 'rmsprop': lambda: torch.optim.RMSprop(groups, momentum=opt.momentum)}[opt.optim]()
    return optimizer, Schedule(opt, optimizer)


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
