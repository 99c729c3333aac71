"""
The one door for files that are written for the public code of Roth et al.: what tells them apart, and what is put
around them, so that they work unedited. docs/from_the_public_code.md describes both.

A criterion is of the public kind by is_criterion(), a miner by its attribute `name`, a sampler by its method
create_storage, a network by its class Network.
"""
import contextlib
import functools
import inspect

import torch
import torch.nn.functional as F

from .errors import UserError  # relative: hubconf.py loads this file under another package's name
from .image_size import sides, written
from .namespace import changed

PAIRS = ('npair', 'lifted')                                         # miners of pairs: three lists in the public code
COSTLY = ('feature_maps', 'images', 'teacher_batch')    # inputs only for a criterion that asks for them
# Blue, green, red, and values in [0, 255], as the weights of BN-Inception expect them
OF_BNINCEPTION = {'mean': (104 / 255, 117 / 255, 128 / 255), 'std': (1 / 255, 1 / 255, 1 / 255), 'bgr': True}


# Criteria

def is_criterion(loss):
    """
    Whether a criterion's file is written for the public code: it imports `batchminer`, it takes only miners of pairs
    and has no FLAGS, or its forward() takes `avg_batch_features`.
    """
    imports = any(inspect.ismodule(value) and value.__name__ == 'batchminer' for value in vars(loss).values())
    allowed = {*(getattr(loss, 'ALLOWED_MINING_OPS', None) or ())}
    takes_lists = allowed and allowed <= {*PAIRS} and not hasattr(loss, 'FLAGS')
    return bool(imports or takes_lists or 'avg_batch_features' in forward_parameters(loss.Criterion))


def forward_parameters(criterion):
    """{name: inspect.Parameter} of what forward() takes of a criterion or its class."""
    return inspect.signature(criterion.forward).parameters


def criterion(loss, opt, miner=None):
    """The Criterion of a file of the public kind; its miner, a loss_sums.Miner, gives it lists."""
    opt = with_public_margin(opt)
    built = loss.Criterion(opt) if miner is None else loss.Criterion(opt, MinerOfLists(miner))
    names = forward_parameters(built)
    if 'avg_batch_features' in names:
        takes_both = 'batch_features' in names
        built.register_forward_pre_hook(functools.partial(name_features, takes_both), with_kwargs=True)
        if takes_both and opt.n_maps is not None:
            built.inputs = ['feature_maps', *names.keys() & {*COSTLY}]
    return built


def name_features(takes_both, criterion, arguments, given):
    """
    A hook that gives a criterion pooled features as avg_batch_features. A criterion that takes both also gets feature
    maps as batch_features, if the network has some.
    """
    named = {'avg_batch_features': given.get('batch_features')} | given
    if takes_both and 'feature_maps' in given:
        named['batch_features'] = given['feature_maps']
    return arguments, named


def with_public_margin(opt):
    """The flags as files of the public code read them: --miner_semihard_margin is a number."""
    flags = vars(opt)
    if flags['miner_semihard_margin'] is not None:
        return opt
    return changed(opt, miner_semihard_margin=flags.get(f'loss_{opt.loss}_margin', 0.2))


class MinerOfLists:
    """A loss_sums.Miner as criteria of the public code call it: it returns a list of triples, or lists_from_masks."""

    def __init__(self, miner):
        self.miner = miner
        self.name = miner.name

    def __call__(self, batch, labels, return_distances=False, **options):
        """
        labels [B]: a tensor on any device, an array or a list. options (`distances`, [B, B]) are passed to a miner that
        takes them; return_distances=True gives (tuples, distances [B, B]).
        """
        if return_distances:
            return self(batch, labels, **options), torch.cdist(batch.detach(), batch.detach())
        mined = self.miner(batch, torch.as_tensor(labels, device=batch.device), **self.taken(options))
        return lists_from_masks(*mined, self.name) if isinstance(mined, tuple) else mined.tolist()

    def taken(self, options):
        """The options that the miner takes. Distances are left out for others, which compute their own."""
        if not options:
            return {}
        names = inspect.signature(self.miner.batchminer).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())
        return {name: value for name, value in options.items() if takes_all or name in names or name != 'distances'}


def lists_from_masks(positives, negatives, name):
    """
    The inverse of masks_from_lists: a list of A anchors, the indices of each anchor's positives, and the indices of its
    negatives. Positives and negatives are lists of A arrays, or arrays [A, n] if every anchor has n. For the miner
    npair, which gives one positive per anchor, the positives are a list of A indices.
    """
    import numpy as np  # here, since hubconf.py needs torch only

    def row_indices(mask):
        rows = [row.nonzero()[:, 0].numpy() for row in mask[anchors]]
        # torch takes a short list of arrays for a tuple of indices
        return np.stack(rows) if len({len(row) for row in rows}) == 1 else rows

    positives = positives.cpu()
    negatives = negatives.cpu()
    anchors = positives.any(dim=1).nonzero()[:, 0].tolist()
    if name == 'npair':
        return anchors, positives[anchors].int().argmax(dim=1).tolist(), row_indices(negatives)
    return anchors, row_indices(positives), row_indices(negatives)


# Miners

def mine_on_the_cpu(batchminer):
    """A miner of the public kind as a function that takes labels on any device, and returns no three lists."""
    def mine(batch, labels, **options):
        mined = batchminer(batch, labels.cpu(), **options)
        are_lists = isinstance(mined, tuple) and len(mined) == 3 and all(isinstance(part, list) for part in mined)
        return masks_from_lists(*mined, batch) if are_lists else mined
    return mine


def masks_from_lists(anchors, positives, negatives, batch):
    """
    The lists of the public code's miners npair and lifted -> masks of positive and negative pairs, two bool [B, B].

    anchors: A indices; positives, negatives: for each anchor, an index or several.
    """
    masks = torch.zeros(2, len(batch), len(batch), dtype=torch.bool)
    for mask, partners in zip(masks, (positives, negatives), strict=True):
        for anchor, others in zip(anchors, partners, strict=True):
            mask[int(anchor), torch.as_tensor(others).long()] = True
    return tuple(masks.to(batch.device))


# Samplers

def is_sampler(module):
    return hasattr(module.Sampler, 'create_storage')


def sampler(opt, built, image_list):
    """A sampler of the public kind with its memory bank; the sampler itself if it says that it needs none."""
    return PublicSampler(opt, built, image_list) if getattr(built, 'requires_storage', True) else built


class AsNetwork(torch.nn.Module):
    """Stands for the network in the public methods: its input are embeddings, which it returns as a network does."""

    def forward(self, x, **kwargs):
        return x, (x, x)


class PublicStorage:
    """
    Has the methods of Storage, for a sampler that fills its own memory bank by create_storage(dataloader, model,
    device) and, with --data_idx_full_prec, full_storage_update(...); the latter is called before each later epoch.
    """

    def __init__(self, opt, sampler, image_list):
        self.sampler = sampler
        self.device = opt.device
        self.labels = torch.tensor([label for _, label in image_list])
        self.refill = opt.data_idx_full_prec
        self.is_filled = False

    def fill(self, embed):
        """Before an epoch. embed: () -> [N, D] embeddings of all training images; called only if needed."""
        if self.is_filled and not self.refill:
            return
        fill = self.sampler.create_storage
        if self.is_filled:
            fill = getattr(self.sampler, 'full_storage_update', fill)
        # a batch as the public loader of images gives it: labels, images, indices
        fill([(self.labels, embed().detach().cpu(), torch.arange(len(self.labels)))], AsNetwork(), self.device)
        self.is_filled = True

    def update(self, embeddings, indices):
        """After a step: the batch's embeddings [B, D] and image indices [B], on the CPU."""
        update = getattr(self.sampler, 'update_storage', True)
        if callable(update):
            update(embeddings.detach().cpu(), indices)
        elif update:
            self.sampler.replace_storage_entries(embeddings.detach().cpu(), indices)


class PublicSampler(torch.utils.data.Sampler):
    """
    A public sampler with a memory bank. It chooses the batches of an epoch in precompute_indices(), if it has this
    method; its joblib workers are replaced by this process, so that the seed determines the batches.
    """

    def __init__(self, opt, sampler, image_list):
        self.sampler = sampler
        self.storage = PublicStorage(opt, sampler, image_list)

    def __iter__(self):
        if hasattr(self.sampler, 'precompute_indices'):
            with in_this_process():
                self.sampler.precompute_indices()
        return iter(self.sampler)

    def __len__(self):
        return len(self.sampler)


def in_this_process():
    try:
        import joblib
    except ImportError:
        return contextlib.nullcontext()
    return joblib.parallel_config(backend='sequential')


# Networks

class PooledFeatures(torch.nn.Module):
    """
    A public network: images [B, 3, H, W] -> the input of its embedding layer [B, F]. The layer itself is replaced by an
    identity, since EmbeddingNetwork has it as f_embed.
    """
    ROOT = 'network.model'                     # the module with the blocks that --freeze counts

    def __init__(self, network):
        super().__init__()
        self.network = network
        layer = network.model.last_linear
        identity = torch.nn.Identity()
        names = [name for name, part in network.named_modules(remove_duplicate=False) if part is layer]
        for name in names:
            network.set_submodule(name, identity)

    def forward(self, images):
        return self.both(images)[0]

    def both(self, images):
        """The input of the embedding layer, and what the network returns."""
        taken = []
        hook = self.network.model.last_linear.register_forward_pre_hook(lambda _, given: taken.append(given[0]))
        try:
            output = self.network(images.contiguous())       # these networks call view(), which needs this layout
        finally:
            hook.remove()
        return taken[-1], output

    def maps(self, images):
        """The last maps [B, C, h, w], where the network returns them."""
        output = self.both(images)[1]
        if isinstance(output, dict):
            return output.get('features')
        return output[1][1] if isinstance(output, tuple) else None


def extract_embeddings(output):
    """What a public network returns -> the embeddings: alone, with features, or as `embeds` of a dict."""
    output = output['embeds'] if isinstance(output, dict) else output
    return output[0] if isinstance(output, tuple) else output


@torch.no_grad()
def network(opt, module):
    """
    The arguments of the Backbone of the class `Network` in an architecture's file, with its embedding layer. Its
    constructor loads its weights, and may read opt.pretrained.

    Raises UserError if the embeddings are not self.model.last_linear of the pooled features, normalised or not.
    """
    check_flags(opt)
    opt.pretrained = not opt.not_pretrained
    try:
        built = module.Network(opt).cpu().eval()
    except OSError as error:
        raise UserError(f'--arch {opt.arch}: its Network could not load its weights ({error}); train from scratch with '
                        '--not_pretrained, or provide the weights where it looks for them') from None
    size = opt.input_size or 224
    layer = getattr(getattr(built, 'model', None), 'last_linear', None)
    if not isinstance(layer, torch.nn.Module):
        raise UserError(f'--arch {opt.arch}: its Network has no embedding layer self.model.last_linear '
                        '(docs/extending.md)')
    images = torch.rand(2, 3, *sides(size), generator=torch.Generator().manual_seed(0))
    try:
        embeddings = extract_embeddings(built(images))
        features = PooledFeatures(built)
        taken = features(images)
        maps = features.maps(images)
    except RuntimeError as error:
        raise UserError(f'--arch {opt.arch}: its Network cannot process images of {written(size)} pixels ({error}); '
                        'set --input_size') from None
    linear = layer(taken)
    normalize = not are_close(embeddings, linear)
    if embeddings.shape != (2, opt.embed_dim) or normalize and not are_close(embeddings, F.normalize(linear, dim=-1)):
        raise UserError(f'--arch {opt.arch}: its embeddings {[*embeddings.shape]} of two images should be the output '
                        f'of self.model.last_linear, normalised or not, with --embed_dim {opt.embed_dim} dimensions; '
                        'move the operations after this layer into it (docs/extending.md)')
    is_average = maps is not None and maps.dim() == 4 and are_close(maps.mean(dim=(2, 3)), taken.flatten(1))
    values = {'network': features, 'size': size, 'download': features.state_dict, 'f_embed': layer,
              'normalize': normalize, 'maps': None}
    if is_average:
        values['maps'] = PooledFeatures.maps
    if 'bninception' in opt.arch:
        values |= OF_BNINCEPTION
    return values


def are_close(one, other):
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-5)


def check_flags(opt):
    """Raises UserError for flags of the embedding layer, which is the network's own."""
    for flag, default in (('embed_layers', []), ('embed_norm', 'none'), ('embed_bias', True), ('embed_init', 'default'),
                          ('cascade', [])):
        if getattr(opt, flag) != default:
            raise UserError(f'--{flag}: --arch {opt.arch} is a network of the public code, with an embedding layer of '
                            'its own; leave the flag out')
