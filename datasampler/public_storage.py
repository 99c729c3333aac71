"""The memory bank of a sampler that is written for the public code of Roth et al., called as the main.py there does."""
import contextlib

import torch

from utilities.errors import UserError


class Given(torch.nn.Module):
    """Stands for the network in the public methods: its input are embeddings, which it returns as a network does."""

    def forward(self, x, **kwargs):
        return x, (x, x)


class PublicStorage:
    """
    Has the methods of Storage, for a sampler that fills its own memory bank by create_storage(dataloader, model,
    device) and, with --data_idx_full_prec, full_storage_update(...); the latter is called before each later epoch.

    Its state is the sampler's state_dict(), or its attributes that are tensors.
    """

    def __init__(self, opt, sampler, image_list):
        self.sampler, self.name, self.device = sampler, opt.data_sampler, opt.device
        self.labels = torch.tensor([label for _, label in image_list])
        self.refill, self.is_filled = opt.data_idx_full_prec, False

    def fill(self, embed):
        """Before an epoch. embed: () -> [N, D] embeddings of all training images; called only if needed."""
        if self.is_filled and not self.refill:
            return
        fill = self.sampler.create_storage
        if self.is_filled:
            fill = getattr(self.sampler, 'full_storage_update', fill)
        # a batch as the public loader of images gives it: labels, images, indices
        fill([(self.labels, embed().detach().cpu(), torch.arange(len(self.labels)))], Given(), self.device)
        self.is_filled = True
        if not self.state_dict()['sampler']:
            raise UserError(f'--data_sampler {self.name}: create_storage leaves no tensor in the sampler, so that a '
                            'checkpoint could not hold its memory bank; keep it as a tensor, or give the sampler '
                            'state_dict and load_state_dict (docs/extending.md)')

    def update(self, embeddings, indices):
        """After a step: the batch's embeddings [B, D] and image indices [B], on the CPU."""
        update = getattr(self.sampler, 'update_storage', True)
        if callable(update):
            update(embeddings.detach().cpu(), indices)
        elif update:
            self.sampler.replace_storage_entries(embeddings.detach().cpu(), indices)

    def state_dict(self):
        if hasattr(self.sampler, 'state_dict'):
            own = self.sampler.state_dict()
        else:
            own = {name: value for name, value in vars(self.sampler).items() if isinstance(value, torch.Tensor)}
        return {'is_filled': self.is_filled, 'sampler': own}

    def load_state_dict(self, state):
        self.is_filled = state['is_filled']
        if hasattr(self.sampler, 'load_state_dict'):
            self.sampler.load_state_dict(state['sampler'])
        else:
            vars(self.sampler).update(state['sampler'])


class PublicSampler(torch.utils.data.Sampler):
    """
    A public sampler with a memory bank. It chooses the batches of an epoch in precompute_indices(), if it has this
    method; its joblib workers are replaced by this process, so that the seed determines the batches.
    """

    def __init__(self, opt, sampler, image_list):
        self.sampler, self.storage = sampler, PublicStorage(opt, sampler, image_list)

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
