"""What the losses, samplers and metrics of hubconf.py make of the arguments of a call, and what they refuse."""
import torch

from .mined import checked, described  # relative: hubconf.py loads this file under another package's name

# keywords that the training step gives every loss; some take them (docs/extending.md)
INPUTS = {'batch_features', 'f_embed', 'indices', 'step', 'epoch', 'feature_maps', 'images', 'teacher_batch'}


def take_call(loss, n_classes, embed_dim, criterion, arguments, named):
    """
    A hook that turns the arguments of a call (batch, labels, indices_tuple, ref_emb, ref_labels) into those of the
    loss, and gives the tuples to its miners. Raises TypeError for keywords that no loss, or not this one, takes;
    ValueError for tuples of another form, for tuples without a miner and for references that the loss does not take;
    and the errors of labels_of_batch.
    """
    batch, labels, tuples, references, more = called_with(*arguments, **named)
    taken = criterion.takes - {'batch', 'labels', 'kwargs'} | INPUTS
    unknown = [name for name in more if name not in taken]
    if unknown:
        raise TypeError(f'criterion {loss!r}: unknown {", ".join(unknown)}; it takes batch, labels, indices_tuple, '
                        f'ref_emb, ref_labels, {", ".join(sorted(taken))}')
    labels = labels_of_batch(batch, labels, n_classes, embed_dim)
    if any(value is not None for value in references):
        more |= reference_keywords(loss, criterion, batch, references, tuples, n_classes)
    miners = [part.batchminer for part in criterion.modules() if hasattr(part, 'batchminer')]
    if tuples is not None and not miners:
        raise ValueError(f'criterion {loss!r} takes no tuples of a miner: leave out indices_tuple, or the miner '
                         'of the trainer')
    for miner in miners:
        found = None if tuples is None else checked_tuples(tuples, batch)
        miner.of_step.tuples = found
        if miner.use == 'own' and miner.takes_masks and isinstance(found, torch.Tensor):
            raise ValueError(f'criterion {loss!r} takes pairs, not triplets: give (anchors, positives, anchors, '
                             'negatives), or two bool masks [B, B]')
    return (), {'batch': batch, 'labels': labels} | more


def called_with(batch, labels, indices_tuple=None, ref_emb=None, ref_labels=None, **more):
    return batch, labels, indices_tuple, (ref_emb, ref_labels), more


def reference_keywords(loss, criterion, batch, given, tuples, n_classes):
    """ref_emb and ref_labels of a call as the keywords of a loss. Raises ValueError where it does not take them."""
    embeddings, labels = given
    if embeddings is None or labels is None:
        raise ValueError('give ref_emb and ref_labels together')
    if 'references' not in criterion.takes:
        raise ValueError(f'criterion {loss!r} compares a batch with itself only: leave out ref_emb and ref_labels')
    if tuples is not None:
        raise ValueError('give indices_tuple or ref_emb, not both: all samples are compared with all references')
    labels = labels_of_batch(embeddings, labels, n_classes, batch.shape[1])
    return {'references': embeddings, 'reference_labels': labels}


def zero_without_samples(criterion, batch, labels, **more):
    """The forward() of a criterion, which gives 0 with a graph for a batch without a sample."""
    if not len(batch):
        return batch.sum() * 0
    return type(criterion).forward(criterion, batch=batch, labels=labels, **more)


def checked_tuples(given, batch):
    """The indices_tuple of a call in one of the two forms of mined.Miner."""
    try:
        return checked(given, batch)
    except (TypeError, ValueError, RuntimeError, IndexError):
        raise ValueError(f'indices_tuple: {described(given)}; expected three or four tensors of indices, as '
                         'miners of pytorch-metric-learning return them, or triplets [T, 3]') from None


def labels_of_batch(batch, labels, n_classes=None, embed_dim=None):
    """
    The labels as int64 on the batch's device, to which labels on the CPU are copied.

    Raises TypeError for labels that are not integers; ValueError for shapes other than [B, embed_dim] and [B], for two
    devices, and for a class outside 0 ... n_classes − 1. On a GPU the latter is an assertion, for which the host does
    not wait.
    """
    for what, value in (('embeddings [B, D]', batch), ('labels [B]', labels)):
        if not isinstance(value, torch.Tensor):
            raise TypeError(f'expected {what}, a tensor, not {"None" if value is None else type(value).__name__}')
    if not batch.is_floating_point():
        raise TypeError(f'expected embeddings of a floating-point type, not {batch.dtype}')
    if batch.dim() != 2 or labels.shape != batch.shape[:1]:
        raise ValueError(f'expected embeddings [B, D] and labels [B], not {[*batch.shape]} and {[*labels.shape]}')
    if embed_dim not in (None, batch.shape[1]):
        raise ValueError(f'expected embeddings [B, {embed_dim}], as embed_dim={embed_dim} says, not {[*batch.shape]}')
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f'expected labels of an integer type, not {labels.dtype}')
    if labels.device.type not in ('cpu', batch.device.type):
        raise ValueError(f'the embeddings are on {batch.device} and the labels on {labels.device}')
    labels = labels.to(batch.device, torch.int64)
    if n_classes is not None and labels.device.type != 'mps' and len(labels):
        in_range = (labels.clamp(0, n_classes - 1) == labels).all()
        if labels.device.type != 'cpu':
            torch._assert_async(in_range, f'expected labels from 0 to {n_classes - 1}')
        elif not in_range:
            raise ValueError(f'expected labels from 0 to {n_classes - 1}, not {labels.min()} to {labels.max()}')
    return labels


def labels_of_images(labels):
    """The labels [N] of metrics() and sampler() on the CPU; integers as int64. Raises ValueError for NaN."""
    labels = torch.as_tensor(labels).cpu()
    if not labels.is_floating_point():
        return labels.long()
    n_missing = int(labels.isnan().sum())
    if n_missing:
        raise ValueError(f'{n_missing} of the {len(labels)} labels are NaN; leave these images out, or give them a '
                         'class')
    return labels
