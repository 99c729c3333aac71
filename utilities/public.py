"""
What criteria, samplers and networks that are written for the public code of Roth et al. need around them.
docs/from_the_public_code.md says what they may contain, and what to edit by hand.
"""
import contextlib

import numpy as np
import torch
import torch.nn.functional as F

from utilities.errors import UserError
from utilities.image_size import sides, written

# Blue, green, red, and values in [0, 255], as the weights of BN-Inception expect them
OF_BNINCEPTION = {'mean': (104 / 255, 117 / 255, 128 / 255), 'std': (1 / 255, 1 / 255, 1 / 255), 'bgr': True}


class MinerOfLists:
    """A mined.Miner as criteria without FLAGS call it: it returns a list of triples, or lists_from_masks."""

    def __init__(self, miner):
        self.miner = miner
        self.name = miner.name

    def __call__(self, batch, labels):
        """labels [B]: a tensor on any device, an array or a list."""
        mined = self.miner(batch, torch.as_tensor(labels, device=batch.device))
        return lists_from_masks(*mined, self.name) if isinstance(mined, tuple) else mined.tolist()


def lists_from_masks(positives, negatives, name):
    """
    Masks of positive and negative pairs, two bool [B, B] -> a list of A anchors, the indices of each anchor's
    positives, and those of its negatives: lists of A arrays, or arrays [A, n] if every anchor has n. For the miner
    npair, which gives one positive per anchor, the positives are a list of A indices.
    """
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


class AsNetwork(torch.nn.Module):
    """Stands for the network in the methods of a sampler. Its input are embeddings, which it returns."""

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

    def start_epoch(self, epoch):
        self.fill(self.embed)

    def stepped(self, embeddings, labels, indices, step):
        self.update(embeddings, indices)

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
    A sampler with a memory bank of its own. It chooses the batches of an epoch in precompute_indices(), if it has this
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


class PooledFeatures(torch.nn.Module):
    """
    A class `Network` of the public code: images [B, 3, H, W] -> the input of its embedding layer [B, F]. The layer
    itself is replaced by an identity, since EmbeddingNetwork has it as f_embed.
    """
    ROOT = 'network.model'                     # the module with the blocks that --freeze counts

    def __init__(self, network):
        super().__init__()
        self.network = network
        layer = network.model.last_linear
        identity = torch.nn.Identity()                       # one for all names of the layer
        for name in [name for name, part in network.named_modules(remove_duplicate=False) if part is layer]:
            network.set_submodule(name, identity)

    def forward(self, images):
        taken = []
        hook = self.network.model.last_linear.register_forward_pre_hook(lambda _, given: taken.append(given[0]))
        try:
            self.network(images.contiguous())                # these networks call view(), which needs this layout
        finally:
            hook.remove()
        return taken[-1]


@torch.no_grad()
def network(opt, module):
    """
    The arguments of the Backbone of the class `Network` in an architecture's file, with its embedding layer
    self.model.last_linear. Its constructor loads its weights, and may read opt.pretrained. Raises UserError if the
    embeddings are not the output of this layer, normalised or not.
    """
    own = {'embed_layers': [], 'embed_norm': 'none', 'embed_bias': True, 'embed_init': 'default', 'cascade': []}
    for flag, default in own.items():
        if getattr(opt, flag) != default:
            raise UserError(f'--{flag}: --arch {opt.arch} has an embedding layer of its own; leave the flag out')
    opt.pretrained = not opt.not_pretrained
    built = module.Network(opt).cpu().eval()
    layer = built.model.last_linear
    size = opt.input_size or 224
    images = torch.rand(2, 3, *sides(size), generator=torch.Generator().manual_seed(0))
    output = built(images)
    output = output['embeds'] if isinstance(output, dict) else output
    embeddings = output[0] if isinstance(output, tuple) else output
    features = PooledFeatures(built)
    linear = layer(features(images))
    normalize = '_normalize' in opt.arch
    expected = F.normalize(linear, dim=-1) if normalize else linear
    if embeddings.shape != (2, opt.embed_dim) or not torch.allclose(embeddings, expected, rtol=1e-3, atol=1e-5):
        raise UserError(f'--arch {opt.arch}: its embeddings {[*embeddings.shape]} of two images of {written(size)} '
                        f'pixels should be the output of self.model.last_linear, normalised with _normalize in the '
                        f'name, of --embed_dim {opt.embed_dim} dimensions (docs/from_the_public_code.md)')
    input_format = OF_BNINCEPTION if 'bninception' in opt.arch else {}
    return {'network': features, 'size': size, 'download': features.state_dict, 'f_embed': layer} | input_format
