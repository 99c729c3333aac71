"""What --tuple_statistics counts in each batch: hard pairs, and what pytorch-metric-learning collects."""
import contextlib

import torch


@torch.no_grad()
def hard_pairs(batch, labels):
    """
    Args:
        batch:  [B, D] embeddings.
        labels: [B] int64.

    Returns: {'hard_positives': the number of positive pairs (anchor, positive) that are farther apart than the anchor
    and its nearest negative, 'hard_negatives': the number of negative pairs (anchor, negative) that are nearer than the
    anchor and its farthest positive}, tensors. The distance is Euclidean.

    >>> found = hard_pairs(torch.tensor([[0.], [2.], [3.], [9.]]), torch.tensor([0, 0, 1, 1]))
    >>> found['hard_positives'].item(), found['hard_negatives'].item()
    (2, 3)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    distances = torch.cdist(batch, batch)
    same = labels[:, None] == labels
    positives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    nearest = distances.masked_fill(same, torch.inf).amin(dim=1, keepdim=True)
    farthest = distances.masked_fill(~positives, -torch.inf).amax(dim=1, keepdim=True)
    return {'hard_positives': (positives & (distances > nearest)).count_nonzero(),
            'hard_negatives': (~same & (distances < farthest)).count_nonzero()}


@contextlib.contextmanager
def collected(is_wanted):
    """If wanted, modules of pytorch-metric-learning that the block makes collect their statistics."""
    if not is_wanted:
        yield
        return
    from pytorch_metric_learning.utils import common_functions
    before, common_functions.COLLECT_STATS = common_functions.COLLECT_STATS, True
    try:
        yield
    finally:
        common_functions.COLLECT_STATS = before


def library_statistics(module):
    """
    {name: scalar} that a module of pytorch-metric-learning and those inside it have collected in their last call. The
    name is the name of the attribute; if the loss has several parts, it begins with the part: pos_loss_num_past_filter.
    """
    found = {}
    for place, part in module.named_modules():
        words = [word for word in place.split('.') if word not in ('', 'reducer', 'reducers')]
        for name in getattr(part, '_record_these_stats', ()):
            found['_'.join([*words, name])] = getattr(part, name)
    return {name: value for name, value in found.items() if isinstance(value, int | float | torch.Tensor)}
