"""Memory bank: the embeddings of all training images, for the samplers that select batches by them."""
import contextlib

import torch
import torch.nn.functional as F

from utilities.errors import UserError
from utilities.randomness import derive

FLAGS = {
    'storage_no_update': {'default': False,
                          'help': 'do not update the memory bank with the embeddings of the training batches'},
    'sampler_lowproj_dim': {'default': -1, 'help': 'dimension of a random projection of the embeddings in the memory '
                                                   'bank; -1 means no projection'},
    'sim_measure': {'default': 'euclidean', 'choices': ['euclidean', 'cosine'],
                    'help': 'distance between embeddings of the memory bank; cosine: Euclidean after L2 normalisation'},
    'idx_full_prec': {'default': False, 'help': 'recompute the whole memory bank before each epoch'},
    'mb_mom': {'default': -1.0, 'help': 'momentum of the changes of the embeddings in the memory bank; -1 means no '
                                        'momentum'},
    'mb_lr': {'default': 1.0,
              'help': 'with --data_mb_mom: factor of the change that is added to each new embedding'},
}


class Storage:
    """
    float32 [N, D] in the order of the training images, on opt.device (on the CPU instead of an Apple GPU, where PyTorch
    cannot compute eigenvalues). D is --embed_dim, or --data_sampler_lowproj_dim after a random projection that the seed
    fixes. The memory bank is filled from the images without augmentation before the first epoch (with
    --data_idx_full_prec, before each epoch) and updated with the embeddings of each training batch, unless
    --data_storage_no_update.

    With --data_mb_mom m > 0, each entry is moved further in the direction of its recent changes, as in the public code
    of Roth et al.: change <- m change + (1 - m) (new - stored), stored <- new + --data_mb_lr change. This takes a
    second tensor [N, D].

    parts.py sets the attribute embed: () -> [N, --embed_dim] embeddings of all training images.
    """

    def __init__(self, opt, n_images):
        if opt.data_mb_mom >= 1:
            raise UserError(f'--data_mb_mom {opt.data_mb_mom}: expected a number below 1 (0 or less means no momentum)')
        dim = opt.data_sampler_lowproj_dim
        if dim >= opt.embed_dim:
            raise UserError(f'--data_sampler_lowproj_dim {dim}: expected less than --embed_dim {opt.embed_dim}')
        self.shape = (n_images, dim if dim > 0 else opt.embed_dim)
        self.device = torch.device('cpu') if opt.device.type == 'mps' else opt.device
        self.cosine = opt.data_sim_measure == 'cosine'
        self.momentum = max(0.0, opt.data_mb_mom)
        self.rate = opt.data_mb_lr if self.momentum else None
        self.no_update = opt.data_storage_no_update
        self.refill = opt.data_idx_full_prec
        self.projection = None
        if dim > 0:
            generator = torch.Generator().manual_seed(derive(opt.seed, 'projection'))
            self.projection = (torch.randn(opt.embed_dim, dim, generator=generator) / dim ** .5).to(self.device)
        self.embeddings = torch.tensor(torch.nan, device=self.device).expand(self.shape)        # nan: not filled yet
        self.change = None

    def start_epoch(self, epoch):
        self.embeddings = self.embeddings.to(self.device)         # a run on a CPU may be resumed on a GPU
        if self.change is not None:
            self.change = self.change.to(self.device)
        if self.embeddings[0, 0].isnan():
            self.embeddings = self.projected(self.embed()).clone()
            self.change = torch.zeros_like(self.embeddings) if self.momentum else None
        elif self.refill:
            self.write(slice(None), self.projected(self.embed()))

    def stepped(self, embeddings, labels, indices, step):
        """After a step: the batch's embeddings [B, --embed_dim] and image indices [B], on the CPU."""
        if not self.no_update:
            last = {index: row for row, index in enumerate(indices.tolist())}       # the last row of each image
            # a single copy, for which the host does not wait
            pairs = torch.tensor([*last.items()]).T.to(self.device, non_blocking=True)
            self.write(pairs[0], self.projected(embeddings)[pairs[1]])

    def write(self, rows, embeddings):
        """rows: image indices, each once; embeddings: of these images, projected."""
        if self.momentum:
            self.change[rows] = (self.momentum * self.change[rows]
                                 + (1 - self.momentum) * (embeddings - self.embeddings[rows]))
            embeddings = embeddings + self.rate * self.change[rows]
        self.embeddings[rows] = embeddings

    def projected(self, embeddings):
        embeddings = embeddings.detach().to(self.device, torch.float32)
        return embeddings if self.projection is None else embeddings @ self.projection

    def __getitem__(self, indices):
        """indices int64 [n] -> embeddings [n, D]; with --data_sim_measure cosine, L2-normalised."""
        points = self.embeddings[indices.to(self.device)]
        return F.normalize(points, dim=1) if self.cosine else points


# For samplers that are written for the public code of Roth et al. (docs/from_the_public_code.md)

class AsNetwork(torch.nn.Module):
    """Stands for the network in the methods of a sampler. Its input are embeddings, which it returns."""

    def forward(self, x, **kwargs):
        return x, (x, x)


class PublicStorage:
    """
    Has the methods and embed of Storage, for a sampler that fills its own memory bank by create_storage(dataloader,
    model, device) and, with --data_idx_full_prec, before each later epoch by full_storage_update(...).
    """

    def __init__(self, opt, sampler, image_list):
        self.sampler = sampler
        self.device = opt.device
        self.labels = torch.tensor([label for _, label in image_list])
        self.refill = opt.data_idx_full_prec
        self.is_filled = False

    def start_epoch(self, epoch):
        if self.is_filled and not self.refill:
            return
        fill = self.sampler.create_storage
        if self.is_filled:
            fill = getattr(self.sampler, 'full_storage_update', fill)
        # a batch as the public loader of images gives it: labels, images, indices
        fill([(self.labels, self.embed().detach().cpu(), torch.arange(len(self.labels)))], AsNetwork(), self.device)
        self.is_filled = True

    def stepped(self, embeddings, labels, indices, step):
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
