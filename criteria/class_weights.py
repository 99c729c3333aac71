# SPDX-License-Identifier: MIT
"""
Class weights: the value of a sample is multiplied by the weight of its class. Balanced weights: Cui et al.,
Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019, https://arxiv.org/abs/1901.05555, Eq. 2.
"""
import csv
import math

import torch

SET_BY = ('class_weights',)
FLAGS = {
    'class_weights': {'default': None, 'metavar': 'balanced|FILE', 'file': True,
                      'help': 'weights of the classes in the loss: balanced, larger for smaller classes, or a CSV file '
                              'of class,weight'},
    'class_weights_beta': {'argument': 'beta', 'at_least': 0, 'at_most': 1},
}


def balanced_weights(class_counts, beta=0.9999):
    """
    Args:
        class_counts: [C], the number of training images n_c of each class.
        beta:         β of balanced class weights (1 − β) / (1 − β^n) for n images; 1 means 1 / n.

    Returns: [C] float32, scaled to the mean 1.

    >>> balanced_weights([16, 4, 1], beta=1.0)
    tensor([0.1429, 0.5714, 2.2857])
    """
    counts = torch.as_tensor(class_counts, dtype=torch.float64)
    weights = (1 - beta) / (1 - beta ** counts) if beta < 1 else 1 / counts
    return (weights / weights.mean()).float()


def weighted_mean(values, weights, counted=None):
    """
    Args:
        values:  [B], the values of the samples.
        weights: [B], the weights of their classes.
        counted: [B] bool, whether a sample has a value; by default all do.

    Returns: scalar, the sum of the values times the weights, divided by the number of samples, as in
    pytorch-metric-learning.

    >>> weighted_mean(torch.tensor([1., 2.]), torch.tensor([3., 1.]))
    tensor(2.5000)
    """
    counted = torch.ones_like(values, dtype=torch.bool) if counted is None else counted
    return (weights.to(values.dtype) * values).where(counted, 0).sum() / counted.sum().clamp(min=1)


class ClassWeighted(torch.nn.Module):
    """
    The weighted_mean of the values of `criterion`, which it returns with reduction='none': [B], or ([B], whether each
    counts [B]). weights: [C], of the classes.
    """

    def __init__(self, criterion, weights):
        super().__init__()
        self.criterion = criterion
        self.register_buffer('class_weights', weights, persistent=False)    # flags and data give them

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        values = self.criterion(batch=batch, labels=labels, reduction='none', **kwargs)
        self.log = getattr(self.criterion, 'log', {})
        values, counted = values if isinstance(values, tuple) else (values, None)
        return weighted_mean(values, self.class_weights[labels], counted)


def read_weights(file, class_names):
    """
    The weights [C] of the classes in a CSV file with the columns class and weight. Raises ValueError for other content
    and for classes that are missing, unknown or named twice; OSError if the file cannot be read.
    """
    try:
        with open(file, encoding='utf-8-sig', newline='') as lines:
            head, *rows = [row for row in csv.reader(lines) if row] or [[]]
    except csv.Error as error:
        raise ValueError(f'not a CSV file ({error})') from None
    if head != ['class', 'weight']:
        raise ValueError('the first line must be class,weight')
    try:
        found = {name: float(weight) for name, weight in rows}
    except ValueError:
        raise ValueError('each line must have a class and a number') from None
    if len(found) < len(rows) or not all(0 <= weight < math.inf for weight in found.values()):
        raise ValueError('each class must occur once, with a weight of at least 0')
    if not any(found.values()):
        raise ValueError('all weights are 0, and nothing would be trained')
    missing = [name for name in class_names if name not in found]
    unknown = found.keys() - {*class_names}
    if missing:
        raise ValueError(f'it has no weight for {len(missing)} of the training classes, such as {missing[0]}')
    if unknown:
        raise ValueError(f'{len(unknown)} of its classes are no training classes, such as {min(unknown)}')
    return torch.tensor([found[name] for name in class_names])


def chosen_weights(opt):
    """The weights [C] of --class_weights. Raises ValueError if it names a file that cannot be used."""
    if opt.class_weights == 'balanced':
        return balanced_weights(opt.class_counts, opt.class_weights_beta)
    try:
        return read_weights(opt.class_weights, opt.class_names)
    except (OSError, ValueError) as error:
        reason = getattr(error, 'strerror', None) or error
        raise ValueError(f'--class_weights {opt.class_weights}: {reason}; give balanced, or a CSV file '
                         '(docs/training_methods.md)') from None


def around(opt, build, miner):
    criterion = build(opt, miner)
    if 'reduction' not in criterion.takes:
        raise ValueError(f'--class_weights does not work with --loss {opt.loss}: it needs a loss that has a value for '
                         'each sample, such as softmax, proxynca or multisimilarity')
    return ClassWeighted(criterion, chosen_weights(opt))
