"""Scalars of every training step, copied from the GPU in a few transfers per epoch, so that no step waits for it."""
import math

import torch

from utilities.errors import RunFailed


class Trace:
    """Collects the scalars of each step of an epoch; a loss or gradient that is not finite stops the run."""

    COPY_EVERY = 50                          # steps

    def __init__(self, epoch):
        self.epoch, self.pending, self.values = epoch, [], {}

    def add(self, **scalars):
        """One step's scalars: 0-d tensors or numbers, the same names in each step, loss and grad_norm among them."""
        self.pending.append({name: torch.as_tensor(value).detach() for name, value in scalars.items()})
        if len(self.pending) >= self.COPY_EVERY:
            self.copy_to_cpu()

    def copy_to_cpu(self):
        """Copies the pending scalars to the CPU. Raises RunFailed for the first step that is not finite."""
        if not self.pending:
            return
        columns = {name: torch.stack([step[name] for step in self.pending]).cpu().tolist() for name in self.pending[0]}
        n_before = len(self.values.get('loss', []))
        pairs = zip(columns['loss'], columns['grad_norm'], strict=True)
        for step, (loss, grad_norm) in enumerate(pairs, start=n_before + 1):
            if not (math.isfinite(loss) and math.isfinite(grad_norm)):
                raise RunFailed(f'Epoch {self.epoch}, step {step}: the loss is {loss}, its gradient norm {grad_norm}.'
                                ' A lower --lr or other parameters of the loss may help.')
        for name, column in columns.items():
            self.values.setdefault(name, []).extend(column)
        self.pending = []

    def mean(self, name):
        return self.total(name) / len(self.values[name])

    def total(self, name):
        self.copy_to_cpu()
        return sum(self.values[name])

    def summary(self):
        """{'train_<name>': mean over the steps}, with the fraction of active tuples where these are counted."""
        self.copy_to_cpu()
        means = {f'train_{name}': self.mean(name) for name in self.values}
        if 'active_tuples' in self.values:
            means['train_active_share'] = self.total('active_tuples') / max(1, self.total('tuples'))
        return means
