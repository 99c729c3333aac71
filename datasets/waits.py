"""How much of the first epoch the training loop waits for its images, and which flags may shorten that."""
import sys
import time

import torch

from datasets.decoding import is_jpeg
from utilities import processes
from utilities.cores import n_cores
from utilities.loading import workers

LEAST_SHARE = 0.2            # share of the epoch's time above which explain() prints its note
LEAST_SECONDS = 5            # shorter epochs say little about longer ones: they include the start of the data workers


class TimedBatches:
    """
    The batches of one epoch. It measures how long the loop waits for each; on a CUDA GPU, how long the GPU is idle
    meanwhile, since the host may wait for images while the GPU is still busy with earlier steps.
    """

    def __init__(self, batches, device):
        self.batches, self.on_gpu = batches, device.type == 'cuda'
        self.began, self.waits = time.perf_counter(), []

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        iterator = iter(self.batches)
        while True:
            before = self.now()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self.waits.append((before, self.now()))
            yield batch

    def now(self):
        """The time in seconds; on a GPU, an event, which the GPU reaches when it has finished its work up to here."""
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def waited(self):
        """The waiting time in seconds. It waits for the GPU."""
        if self.on_gpu:
            torch.cuda.synchronize()
            return sum(before.elapsed_time(after) for before, after in self.waits) / 1000
        return sum(after - before for before, after in self.waits)

    def explain(self, opt, loader, epoch):
        """In the first epoch of a TrainingLoader, prints a note if the loop waited for more than LEAST_SHARE of it."""
        if loader.n_epochs > 1:
            return
        waited, seconds = self.waited(), time.perf_counter() - self.began
        if seconds >= LEAST_SECONDS and waited > LEAST_SHARE * seconds and processes.is_main():
            helpful = ', '.join(remedies(opt, loader.dataset)) or 'more processor cores'
            print(f'Note: {waited / seconds:.0%} of the training time of epoch {epoch} was spent waiting for images. '
                  f'What may help: {helpful}.', file=sys.stderr)


def remedies(opt, images):
    """The flags, not yet used by this run, that may shorten the time of loading `images`, the training images."""
    n = max(1, n_cores() // processes.local_count())
    found = [f'--kernels {n}'] if workers(opt) < n and (n > 1 or opt.device.type != 'cpu') else []
    if not opt.image_cache:
        found.append('--image_cache FOLDER')
    if opt.decode == 'exact' and any(map(is_jpeg, images.paths)):
        found.append('--decode auto')
    if opt.device.type != 'cpu' and not (opt.augment_on_gpu or opt.randaugment):
        from datasets.on_device import CROPS  # imports torchvision, as slow as torch itself
        if any(isinstance(transform, CROPS) for transform in images.transform.transforms):
            found.append('--augment_on_gpu')
    return found
