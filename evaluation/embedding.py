"""
From images to embeddings: the only place that embeds. network_outputs() applies a network to a batch, in training too;
embed_batch() says how images are embedded wherever nothing is trained; embed() embeds all images of a split.
"""
import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from evaluation.ranking.arrays import take_rows
from evaluation.ranking.neighbours import Search
from records.checkpoint import checksum
from utilities import exchange, processes, stopping
from utilities.device import full_float32
from utilities.errors import RunFailed, UserError
from utilities.files import atomic
from utilities.image_size import scaled


def network_input(images, device):
    """
    Images [B, 3, H, W] as a loader gives them -> the network's input: float32 RGB in [0, 1], on `device`. Raises
    UserError for features in place of images.
    """
    if images.dim() == 2:
        raise UserError('the pixels of images are needed whose features were computed before the training; give '
                        '--keep_features false')
    if images.device != device:                              # torch.export would write down a device that is named here
        images = images.to(device, non_blocking=True)
    if images.dtype != torch.uint8:
        return images
    layout = torch.channels_last if images.device.type == 'cpu' else torch.contiguous_format  # the network's layout
    return images.to(torch.float32, memory_format=layout).mul_(1 / 255)


def network_outputs(network, images, with_maps=False):
    """
    The network's embeddings [B, D], pooled features [B, F] and, if with_maps, feature maps for a batch of images.

    images: [B, 3, H, W] as a loader gives them, on any device; or, without maps, their pooled features [B, F].
    """
    device = network.mean.device
    if images.dim() == 2 and not with_maps:
        features = images.to(device)
        return network.embedded(features), features
    return network(network_input(images, device), with_maps)


def embed_batch(network, images, settings=None):
    """
    Embeds images in evaluation, by Evaluate_Network.py, in an index and its queries, by torch.hub's network and,
    without views, by a teacher; a change here acts in all of them. Images as in network_outputs() -> embeddings [B, D]
    and pooled features [B, F], the means over the images and their --eval_views, which the network gets one after the
    other. Float32 is computed in full precision, even if a GPU trains in TF32.

    settings: {flag: value} of the flags with embedding=True in parameters.py; None for a teacher.
    """
    views = settings['eval_views'] if settings else ()
    further = [view for view in dict.fromkeys(views) if view != 1]                  # each view counts once
    with full_float32():
        outputs = network_outputs(network, images)
        for view in further:
            of_view = network_outputs(network, seen(images, view, network))
            outputs = [total + own for total, own in zip(outputs, of_view, strict=True)]
        return [total / (1 + len(further)) for total in outputs]


def seen(images, view, network):
    """A view of images [B, 3, H, W]: flip, the mirror images; or a factor, by which height and width are scaled."""
    if view == 'flip':
        return images.flip(-1)
    pixels = network_input(images, network.mean.device)
    return F.interpolate(pixels, scaled(pixels.shape[2:], view), mode='bilinear', antialias=True)


def compared(embeddings, normalize):
    """The embeddings [N, D] as they are compared with each other: of norm 1 with `normalize` (--eval_normalize)."""
    return F.normalize(embeddings, dim=1) if normalize else embeddings


@dataclass
class Embedded:
    """
    embeddings: [N, D] float32 tensor, in the order of the images; on the GPU with --evaluate_on_gpu.
    images:     the ImageSet they come from, with its labels and paths.
    ranking:    None, or embeddings -> (queries, gallery), whose inner product is the score in place of the distance.
    norms:      [N] float32 array, the norms of the network's embeddings; if it normalises them, the norms before
                that, with --cascade those of the last level; None if unknown.
    network:    the EmbeddingNetwork; None if unknown.
    of_features: whether `embeddings` are pooled features.
    """
    embeddings: torch.Tensor
    images: torch.utils.data.Dataset
    ranking: Callable | None = None
    norms: np.ndarray | None = None
    network: torch.nn.Module | None = None
    of_features: bool = False

    def search(self):
        ranking = self.ranking(self.embeddings) if self.ranking else None
        return Search(self.embeddings, self.images.labels, self.images.is_query, self.images.in_gallery, ranking)

    def without_distractors(self):
        """The embeddings [n, D] and labels [n] of the images that are of a class: of all but distractors."""
        kept = np.flatnonzero(~self.images.is_distractor)
        return take_rows(self.embeddings, kept), self.images.labels[kept]


def evaluation_batches(opt, dataset):
    """
    The batches of indices in which one process would load `dataset` in order, divided into contiguous parts: a list of
    batches for each process of the run.
    """
    size = opt.eval_bs or opt.bs
    batches = [range(start, min(start + size, len(dataset))) for start in range(0, len(dataset), size)]
    n = processes.count()
    return [batches[len(batches) * i // n:len(batches) * (i + 1) // n] for i in range(n)]


@torch.inference_mode()
def embed(opt, model, images, name, features=False, autocast=None):
    """
    Embeds an ImageSet in evaluation mode: the network's embeddings, or its pooled features. The processes of a run
    divide the batches and exchange the embeddings: all of them must call this function, and each gets all embeddings.

    autocast: None, or the name of the dtype to compute in. Raises RunFailed where an embedding is not finite.
    """
    model.eval()
    device = opt.device if opt.evaluate_on_gpu else torch.device('cpu')
    embeddings = norms = None
    batches = evaluation_batches(opt, images)
    precision = torch.autocast(opt.device.type, getattr(torch, autocast or 'float32'), enabled=autocast is not None)
    loader = images.loader(opt, batches[processes.rank()], model)
    bar = tqdm(loader, desc=f'embed {name}', leave=False, disable=None)
    for batch, _, indices in stopping.checked(bar):
        with precision, full_float32():
            found = embed_batch(model, batch, vars(opt))
            raw = model.f_embed(found[1]) if model.normalize else found[0]              # before normalisation
            norm = raw.float().norm(dim=1, keepdim=True)
        embedded = found[int(features)]
        rows = slice(int(indices[0]), int(indices[0]) + len(batch))
        if embeddings is None:
            embeddings = torch.empty(len(images), embedded.shape[1], device=device)
            norms = torch.empty(len(images), 1, device=device)
        embeddings[rows] = embedded
        norms[rows] = norm
    if processes.connected():
        embeddings = exchange.completed(embeddings, batches, len(images), device)
        norms = exchange.completed(norms, batches, len(images), device)
    bad = ~embeddings.isfinite().all(dim=1)
    if bad.any():
        raise RunFailed(f'{int(bad.sum())} of {len(bad)} embeddings of the {name} split are not finite; the first '
                        f'belongs to {images.sources[int(np.flatnonzero(bad.cpu())[0])]}')
    return Embedded(embeddings, images, norms=norms[:, 0].cpu().numpy(), network=model, of_features=features)


@torch.inference_mode()
@full_float32()
def pooled_features(opt, model, images, batches, name):
    """The pooled features [N, F] of an ImageSet in evaluation mode, without --eval_views. batches: lists of indices."""
    model.eval()
    rows = torch.empty(len(images), model.n_features)
    bar = tqdm(images.loader(opt, batches), desc=f'features of {name}', leave=False, disable=None)
    for batch, _, indices in stopping.checked(bar):
        rows[indices] = network_outputs(model, batch)[1].cpu()
    return rows


@torch.inference_mode()
@full_float32()
def features_suffice(embedding, model, images, rows, batches):
    """
    Whether embedding(model, batch) is the same to the last bit for the pooled features `rows` [N, F] and for the images
    of an ImageSet, in these batches of indices and in full float32.
    """
    model.eval()
    for indices in batches:
        batch, _, _ = images.batch(indices)
        expected = embedding(model, batch)
        try:
            found = embedding(model, rows[indices])
        except Exception:  # edits of an embedding that need pixels raise all kinds of exceptions on features
            return False
        if not all(torch.equal(*pair) for pair in zip(found, expected, strict=True)):
            return False
    return True


def write(embedded, file):
    """Writes {split: Embedded} as .npz: embeddings [N, D], norms, labels, class_names, paths and splits, each [N]."""
    parts = [{'embeddings': part.embeddings.cpu().numpy(), 'norms': part.norms, 'labels': part.images.labels,
              'class_names': np.array(part.images.class_names)[part.images.labels],
              'paths': np.array([str(source) for source in part.images.sources]),
              'splits': np.full(len(part.images), split)} for split, part in embedded.items()]
    with atomic(file) as temporary, open(temporary, 'wb') as opened:
        np.savez_compressed(opened, **{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def network_id(model, settings):
    """A checksum of the weights and of the flags that their use depends on: 16 hexadecimal digits."""
    weights = dict(sorted(model.state_dict().items())) | {'mean': model.mean, 'std': model.std}
    return checksum(weights, json.dumps(settings, sort_keys=True))[:16]
