"""The learning rates and weight decays of a run, as a function of flags and step."""
import math

ONE_CYCLE_START = 1 / 25                # the first factor of --scheduler onecycle, as in torch


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
            floor = opt.lr_floor                                         # in every epoch: flags not read are named
            return between(1, floor, min(1, n_annealed / opt.n_epochs)) if n_annealed > 0 else 1
        if opt.scheduler == 'onecycle':
            floor = opt.lr_floor
            last = opt.n_epochs * self.n_steps - 1                       # steps counted from 0, as in torch
            peak = opt.onecycle_peak * (last + 1) - 1
            if last == 0:                                                # the run has a single step
                return 1
            if step - 1 <= peak and peak > 0:
                return between(ONE_CYCLE_START, 1, (step - 1) / peak)
            return between(1, floor, min(1, (step - 1 - peak) / (last - peak)))
        return 1

    def rates(self):
        """The present learning rates: {'lr': the backbone's, 'lr/<group>': each group's}."""
        groups = self.groups
        return {'lr': groups[0]['lr']} | {f'lr/{group["name"]}': group['lr'] for group in groups}


def between(first, last, progress):
    """From first to last along half a cosine, for progress from 0 to 1."""
    return last + (first - last) * ((1 + math.cos(math.pi * progress)) / 2)
