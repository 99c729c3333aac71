# SPDX-License-Identifier: MIT
"""
Distillation of a teacher's similarities, added to any loss. The form follows Roth et al., S2SD: Simultaneous
Similarity-based Self-Distillation for Deep Metric Learning, ICML 2021, https://arxiv.org/abs/2009.08348, with the
embeddings of another network in place of the larger embeddings.
"""
import torch
import torch.nn.functional as F

SET_BY = ('distill', 'distill_w')
FLAGS = {
    'distill': {'default': None, 'metavar': 'RUN_FOLDER|ema', 'file': True,
                'help': 'teacher: a run folder, a checkpoint, or ema, the moving average of the weights; by default '
                        'none'},
    'distill_w': {'argument': 'weight', 'at_least': 0},
    'distill_T': {'argument': 'temperature', 'above': 0},
}


def distillation(cosines, targets, temperature=1.0):
    """T² times the mean over rows of KL(softmax(targets / T) ‖ softmax(cosines / T)). cosines, targets: [B, B]."""
    logarithms, wanted = ((similarities / temperature).log_softmax(dim=1) for similarities in (cosines, targets))
    return temperature ** 2 * F.kl_div(logarithms, wanted, reduction='batchmean', log_target=True)


def distillation_loss(batch, teacher_batch, temperature=1.0):
    """
    Args:
        batch:         [B, D] embeddings, normalised here.
        teacher_batch: [B, D'] the teacher's embeddings of the same images, normalised here. They get no gradient.
        temperature:   T, temperature of the distillation; the cosines are divided by it.

    Returns: scalar, the distillation from the teacher's cosines to the batch's cosines.

    >>> batch, teacher_batch = torch.tensor([[1., 0.], [0.6, 0.8]]), torch.tensor([[2.], [-2.]])
    >>> distillation_loss(batch, teacher_batch)
    tensor(0.1954)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        teacher_batch = F.normalize(teacher_batch.detach().to(batch.dtype), dim=1)
        batch = F.normalize(batch, dim=1)
        return distillation(batch @ batch.T, teacher_batch @ teacher_batch.T, temperature)


class Distilled(torch.nn.Module):
    """
    A loss plus `weight` times the distillation from a teacher.

    Args:
        criterion:   the loss, a module called as criterion(batch=, labels=, ...).
        weight:      weight of the distillation; 0 means no teacher.
        temperature: temperature of the distillation; cosines are divided by it.
    """

    def __init__(self, criterion, weight=50.0, temperature=1.0):
        super().__init__()
        self.criterion = criterion
        self.weight = weight
        self.temperature = temperature

    def forward(self, batch, labels, teacher_batch, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, teacher_batch [B, D'], on one device -> scalar."""
        loss = self.criterion(batch=batch, labels=labels, teacher_batch=teacher_batch, **kwargs)
        distilled = distillation_loss(batch, teacher_batch, self.temperature)
        self.log = {'distillation': distilled.detach()}
        return loss + self.weight * distilled


def problem(opt):
    if opt.distill == 'ema' and opt.ema is None:
        return ('--distill ema: the teacher is the moving average of the weights, whose decay is --ema; give that flag '
                'too, such as --ema 0.999')
    return None


def around(opt, build, miner):
    return Distilled(build(opt, miner), opt.distill_w, opt.distill_T)
