# SPDX-License-Identifier: MIT
"""Cross-batch memory for losses of pairs. Wang et al., CVPR 2020, https://arxiv.org/abs/1912.06798."""
import torch

NEEDS = 'it is for losses that compare a batch with references, such as contrastive, multisimilarity or supcon'
SET_BY = ('xbm_size',)
INSIDE_LOSSES = True
FLAGS = {
    'xbm_size': {'default': 0, 'at_least': 0,
                 'help': 'number of embeddings in the cross-batch memory bank; 0 means no memory bank'},
    'xbm_weight': {'argument': 'weight', 'at_least': 0},
    'xbm_start': {'default': 1000, 'at_least': 0,
                  'help': 'number of batches before the memory bank is used'},
}


class CrossBatchMemory(torch.nn.Module):
    """
    The loss of the batch plus `weight` times the loss of the pairs (sample of the batch, entry of the memory bank). The
    memory bank is a ring buffer of the last `size` embeddings, without gradient, and includes the batch. A sample is
    not paired with its own entry.

    Args:
        criterion: a loss that takes references, reference_labels and own.
        size:      number of entries of the memory bank, at least the batch size.
        dim:       dimension of the embeddings.
        weight:    weight of the loss on pairs of a sample and an entry of the memory bank.
        start:     number of batches after which the memory bank is used.

    >>> def loss(batch, labels, references=None, reference_labels=None, own=None):
    ...     return torch.tensor(1.0 if references is None else 10.0 * len(references))
    >>> memory = CrossBatchMemory(loss, size=3, dim=4, weight=0.5)
    >>> memory(torch.randn(2, 4), torch.tensor([0, 1]))
    tensor(11.)
    >>> memory(torch.randn(2, 4), torch.tensor([0, 1]))
    tensor(16.)
    """

    def __init__(self, criterion, size, dim, weight=1.0, start=0):
        super().__init__()
        self.criterion = criterion
        self.size = size
        self.weight = weight
        self.start = start
        self.register_buffer('embeddings', torch.zeros(size, dim))
        self.register_buffer('labels', torch.zeros(size, dtype=torch.int64))
        self.n_seen = 0                                  # kept on the host: no step waits for the device
        self.n_batches = 0

    def get_extra_state(self):
        return {'n_seen': self.n_seen, 'n_batches': self.n_batches}

    def set_extra_state(self, state):
        self.n_seen = state['n_seen']
        self.n_batches = state['n_batches']

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device -> scalar."""
        own = torch.arange(self.n_seen, self.n_seen + len(batch), device=batch.device) % self.size
        self.embeddings[own] = batch.detach().to(self.embeddings.dtype)
        self.labels[own] = labels
        self.n_seen += len(batch)
        self.n_batches += 1
        loss = self.criterion(batch=batch, labels=labels, **kwargs)
        self.log = getattr(self.criterion, 'log', {})
        if self.n_batches <= self.start:
            return loss
        filled = min(self.n_seen, self.size)
        # a copy: the next batch overwrites entries that this batch's gradient may still need
        references, reference_labels = self.embeddings[:filled].clone(), self.labels[:filled].clone()
        return loss + self.weight * self.criterion(batch=batch, labels=labels, references=references,
                                                   reference_labels=reference_labels, own=own, **kwargs)


def around(opt, build, miner):
    criterion = build(opt, miner)
    if 'references' not in criterion.takes:
        return criterion
    if opt.xbm_size < opt.bs:
        raise ValueError(f'--xbm_size {opt.xbm_size}: the memory bank must hold at least a batch, --bs {opt.bs}')
    return CrossBatchMemory(criterion, opt.xbm_size, opt.embed_dim, opt.xbm_weight, opt.xbm_start)
