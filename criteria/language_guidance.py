# SPDX-License-Identifier: MIT
"""
Language guidance, added to any loss: the similarities of a batch follow the similarities of its class names.
Roth et al., Integrating Language Guidance into Vision-based Deep Metric Learning, CVPR 2022,
https://arxiv.org/abs/2203.08543.
"""
import torch
import torch.nn.functional as F

FLAGS = {
    'language_distill_w': {'default': 0.0, 'at_least': 0,
                           'help': 'weight of language guidance (Roth et al., CVPR 2022), with --language_vectors; 0 '
                                   'means none'},
    'language_vectors': {'default': None, 'metavar': 'FILE',
                         'help': 'language guidance: .npz file of class_names and their vectors; '
                                 'docs/training_methods.md has its format'},
    'language_pseudoclass': {'default': False,
                             'help': 'language guidance: use several vectors per class, such as vectors of '
                                     'its likeliest ImageNet classes'},
    'language_pseudoclass_topk': {'default': 5, 'at_least': 1,
                                  'help': 'language guidance: number of vectors per class, the first ones in the file'},
    'language_delay': {'default': 0, 'at_least': 0, 'begins_at': 'language guidance never begins',
                       'help': 'language guidance: the first training step with it, counted from 1'},
    'language_shift': {'argument': 'shift'},
    'language_temp': {'argument': 'temperature', 'above': 0},
    'language_distill_dir': {'argument': 'direction', 'choices': ['backward', 'forward']},
    'language_model': {'default': None, 'metavar': 'NAME', 'obsolete': True,
                       'help': 'without effect, since --language_vectors has the vectors of the text model; for '
                               'scripts of Roth et al.'},
}


def language_guidance(batch, labels, vectors, shift=1.0, temperature=1.0, direction='backward'):
    """
    Args:
        batch:       [B, D] embeddings, used as they are.
        labels:      [B] int64 below C.
        vectors:     [C, k, D'] k language vectors of each class, normalised here. They get no gradient.
        shift:       language guidance: added to the similarities of the language vectors.
        temperature: T, temperature of language guidance, by which all similarities are divided.
        direction:   language guidance: backward, for KL(batch ‖ language), or forward, for KL(language ‖ batch).

    Returns: scalar, T² times the mean over rows of the KL divergence between the softmaxes of two similarity matrices
    [B, B]: the dot products of the embeddings, and `shift` plus the mean of the k cosines of the language vectors. In
    both, pairs of a class have the similarity 1 + shift.

    >>> batch, vectors = torch.tensor([[1., 0.], [0.6, 0.8]]), torch.tensor([[[1., 0.]], [[0., 2.]]])
    >>> language_guidance(batch, torch.tensor([0, 1]), vectors)
    tensor(0.0137)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        own = F.normalize(vectors.detach()[labels].to(batch.dtype), dim=2)
        language = shift + own.flatten(1) @ own.flatten(1).T / own.shape[1]
        same = labels[:, None] == labels
        ours, theirs = ((similarities.masked_fill(same, 1 + shift) / temperature).log_softmax(dim=1)
                        for similarities in (batch @ batch.T, language))
        wanted, given = {'backward': (ours, theirs), 'forward': (theirs, ours)}[direction]
        return temperature ** 2 * F.kl_div(given, wanted, reduction='batchmean', log_target=True)


class LanguageGuided(torch.nn.Module):
    """
    A loss plus `weight` times the language guidance.

    Args:
        criterion: the loss, a module called as criterion(batch=, labels=, ...).
        vectors:   [C, k, D'] language vectors of the classes; None if the loss is not computed, as in an evaluation.
        weight:    weight of the guidance.
        delay:     the first step with guidance; steps count from 1.
        shift, temperature, direction: see language_guidance.
    """

    def __init__(self, criterion, vectors, weight, delay=0, shift=1.0, temperature=1.0, direction='backward'):
        super().__init__()
        self.criterion = criterion
        self.weight = weight
        self.delay = delay
        self.register_buffer('vectors', vectors, persistent=False)          # checkpoints hold their checksum instead
        self.arguments = shift, temperature, direction

    def forward(self, batch, labels, step, **kwargs):
        """batch [B, D] embeddings, labels [B] int64, on one device; step: its number, from 1 -> scalar."""
        loss = self.criterion(batch=batch, labels=labels, step=step, **kwargs)
        guidance = torch.zeros_like(loss)
        if step >= self.delay:
            guidance = language_guidance(batch, labels, self.vectors, *self.arguments)
        self.log = {'language_guidance': guidance.detach()}
        return loss + self.weight * guidance


def problem(opt):
    if not opt.language_vectors:
        return ('--language_distill_w needs --language_vectors FILE, the vectors of the class names: this program '
                'contains neither a text model nor the ImageNet classifier of --language_pseudoclass; '
                'docs/training_methods.md says how to make the file')
    return None


def around(opt, build, miner):
    return LanguageGuided(build(opt, miner), opt.class_vectors, opt.language_distill_w, opt.language_delay,
                          opt.language_shift, opt.language_temp, opt.language_distill_dir)
