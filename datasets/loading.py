"""Data loaders whose batches do not depend on the number of workers."""
import functools
import itertools
import pickle
import sys
from dataclasses import dataclass

import torch

from utilities import exchange, processes
from utilities.device import is_gpu, keep_freed
from utilities.errors import UserError
from utilities.randomness import derive


class Loader(torch.utils.data.DataLoader):
    """
    A DataLoader whose data workers report where shared memory is full, and keep freed memory, as this process does.

    The images of an ImageSet are uint8 [B, 3, H, W], for evaluation.embedding.network_input.
    """

    def __init__(self, dataset, **arguments):
        if hasattr(dataset, 'batch'):
            dataset = Batches(dataset)
            arguments['collate_fn'] = unchanged
        if arguments.get('num_workers'):
            collate = arguments.get('collate_fn') or torch.utils.data.default_collate
            arguments['collate_fn'] = functools.partial(shared, collate)
            if sys.platform == 'linux':
                # forkserver, the default since Python 3.14, would import all packages again in each worker
                arguments['multiprocessing_context'] = 'fork'
        keep_freed()
        super().__init__(dataset, worker_init_fn=ignore_lost_connections, **arguments)


def ignore_lost_connections(worker):
    """
    Prints no error in a data worker if the main process, because it is stopped, breaks off a connection through which
    it takes a batch: a thread of the worker would print it. Errors of the data set reach the main process another way.
    """
    def print_unless_lost(kind, *error):
        if not issubclass(kind, (OSError, EOFError)):
            sys.__excepthook__(kind, *error)

    sys.excepthook = print_unless_lost


@dataclass
class Batches(torch.utils.data.Dataset):
    """An ImageSet of which a data worker loads a batch at once."""
    images: torch.utils.data.Dataset

    def __len__(self):
        return len(self.images)

    def __getitems__(self, items):
        return self.images.batch(items)


def unchanged(batch):
    return batch


def shared(collate, items):
    """
    Puts each new batch into shared memory in the worker itself, so that an error reaches the main process. By default,
    a thread of the worker does so; if /dev/shm is full, the batch is then lost and the run waits for it forever.
    """
    batch = collate(items)
    for part in batch:
        if isinstance(part, torch.Tensor):
            part.share_memory_()
    return batch


def workers(opt):
    """The number of data workers: --kernels, but no more than this machine's cores for each process of the run."""
    return min(opt.kernels, max(1, processes.n_cores() // processes.local_count()))


class TrainingLoader:
    """
    Loads the batches of one epoch after the other, with workers that live as long as the data set stays the same.

    All batches of an epoch are sampled here before its first image is loaded, so that a sampler and a miner that use
    the same random generator do not affect each other. Each sampled image is in its batch --views times. Each of these
    views has a seed for its augmentation, made of --seed, the epoch and the position in the epoch, so that the views of
    an image differ, and an image that is sampled twice is augmented differently. Where several processes share a batch,
    the first samples it, and each loads its part.
    """

    def __init__(self, opt, dataset, sampler):
        self.opt = opt
        self.dataset = dataset
        self.sampler = sampler
        self.whole = []                                      # the epoch's batches
        self.batches = []                                    # the parts of them that this process loads
        self.loader = None
        self.of_workers = None                               # the data set that the workers have, pickled

    def epoch(self, epoch):
        """
        Samples the epoch's batches; returns the loader, which yields (images [B, 3, H, W], labels [B], indices [B]) for
        each batch. Where several processes share a batch, the images are this process's part only, or the batch's first
        image if the part is empty. If the data set has features, they replace the images.
        """
        self.begin_loading()
        sampled = processes.run_on_rank_zero(self.sampled, epoch)
        self.whole = [[*map(tuple, batch)] for batch in sampled]             # other processes than 0 get lists of two
        features = getattr(self.dataset, 'features', None)
        found = None if features is None else features.of(self.dataset)
        if found is not None:
            return found.loader(self.whole)
        if processes.count() == 1:
            self.batches[:] = self.whole
            return self.loader
        self.batches[:] = [batch[exchange.part(len(batch))] or batch[:1] for batch in self.whole]
        return self

    def begin_loading(self):
        """
        Makes the loader, whose workers keep a copy of the data set. Makes a new one if the data set has changed since,
        for example by start_epoch() of its transform, or if this is unknown, because it cannot be pickled.
        """
        n_workers = workers(self.opt)
        try:
            now = pickle.dumps(self.dataset) if n_workers else b''
        except Exception:                                    # pickle raises anything
            now = None
        if self.loader is None or now is None or now != self.of_workers:
            self.loader = Loader(
                self.dataset, batch_sampler=self.batches, num_workers=n_workers, persistent_workers=n_workers > 0,
                pin_memory=is_gpu(self.opt.device), generator=torch.Generator())
            self.of_workers = now

    def sampled(self, epoch):
        """
        The epoch's batches, lists of (index, seed); the views of an image follow each other. A sampler that ends before
        --iterations_per_epoch begins again. Raises UserError for one without a batch.
        """
        n_batches = self.opt.iterations_per_epoch or len(self.sampler)
        chosen = []
        while len(chosen) < n_batches or not chosen:
            more = [[*map(int, batch)] for batch in itertools.islice(self.sampler, n_batches - len(chosen))]
            if not more:
                raise UserError(f'--data_sampler {self.opt.data_sampler} gives no batch of --bs {self.opt.bs} from '
                                f'{len(self.dataset)} images')
            chosen += more
        seeds = (derive(self.opt.seed, epoch, position) for position in itertools.count())
        return [[(index, next(seeds)) for index in batch for _ in range(self.opt.views)] for batch in chosen]

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for batch, (images, _, _) in zip(self.whole, self.loader, strict=True):
            indices = torch.tensor([index for index, _ in batch])
            yield images, torch.from_numpy(self.dataset.labels)[indices], indices
