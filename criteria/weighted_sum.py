# SPDX-License-Identifier: MIT
"""A weighted sum of losses."""
import torch


class WeightedSum(torch.nn.Module):
    """
    Args:
        names:    names of the losses, for the log.
        criteria: the losses, modules called as criterion(batch=, labels=, ...).
        weights:  the factor of each loss.

    >>> class Largest(torch.nn.Module):
    ...     def forward(self, batch, labels):
    ...         return batch.max()
    >>> WeightedSum(['one', 'another'], [Largest(), Largest()], [1.0, 0.5])(torch.tensor([1., 2.]), None)
    tensor(3.)
    """

    def __init__(self, names, criteria, weights):
        super().__init__()
        self.names = names
        self.criteria = torch.nn.ModuleList(criteria)
        self.weights = weights
        own = [criterion.ranking_embeddings for criterion in criteria if hasattr(criterion, 'ranking_embeddings')]
        if len(own) == 1:
            self.ranking_embeddings, = own          # the only loss with its own distance

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        values = [criterion(batch=batch, labels=labels, **kwargs) for criterion in self.criteria]
        self.log = {}
        for name, criterion, value in zip(self.names, self.criteria, values, strict=True):
            own = getattr(criterion, 'log', {})
            self.log |= {f'{name}_loss': value.detach()} | {f'{name}_{key}': scalar for key, scalar in own.items()}
        return sum(weight * value for weight, value in zip(self.weights, values, strict=True))

    def parameter_groups(self):
        return [{'name': f'criterion_{name}'} | group for name, criterion in zip(self.names, self.criteria, strict=True)
                for group in criterion.parameter_groups()]
