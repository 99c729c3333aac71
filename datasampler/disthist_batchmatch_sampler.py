# SPDX-License-Identifier: MIT
"""
DDM of Roth et al., ICML 2020: of random candidates, the one most similar to a big batch in moments and distances.

Differs: The public code samples the classes of the big batch and of the candidates with replacement; here a batch is
composed as by class_random. It takes the Wasserstein distance between the heights of the bins, in both directions,
which ignores where the bins are: two one-bin histograms 40 bins apart have cost 0. Here it is the distance between the
histograms, once.
"""
import hashlib

import torch

DISTINCT = 'classes'            # no class repeats in a batch
REQUIRES_STORAGE = True         # Sampler(opt, image_dict, image_list, storage)
USES = ['data_batchmatch_bigbs', 'data_batchmatch_ncomps']


def distance_histogram_costs(points, candidates, n_bins=50, weight=75):
    """
    Cost |m - m'| + |s - s'| + weight * W of each candidate, compared with all points: m and s are the mean and standard
    deviation per dimension, and W is the Wasserstein distance of the histograms of pairwise distances, in units of
    distance. The bins divide the range of the distances between all points.

    Args:
        points:     [n, D].
        candidates: [m, B] int64, indices into points, different within a row, B >= 2.

    Returns: [m].
    """
    distances = torch.cdist(points, points)
    own = torch.eye(len(points), dtype=torch.bool, device=points.device)
    low, high = distances.masked_fill(own, torch.inf).min(), distances.max()
    width = (high - low) / n_bins
    bins = ((distances - low) / width.clamp(min=torch.finfo(width.dtype).tiny)).long().clamp(max=n_bins - 1)
    bins = bins.masked_fill(own, n_bins)                                # an extra bin that is not counted

    def cumulative(bins):
        """[m, ...] bins of pairs -> [m, n_bins], the fraction of the pairs up to and including each bin."""
        rows = torch.arange(len(bins), device=bins.device)[:, None] * (n_bins + 1)
        counts = (bins.flatten(1) + rows).flatten().bincount(minlength=len(bins) * (n_bins + 1))
        counts = counts.view(len(bins), n_bins + 1)[:, :n_bins].cumsum(dim=1)
        return counts / counts[:, -1:]

    chosen = bins[candidates[:, :, None], candidates[:, None, :]]       # [m, B, B]
    moved = width * (cumulative(chosen) - cumulative(bins[None])).abs().sum(dim=1)
    subsets = points[candidates]
    means = (subsets.mean(dim=1) - points.mean(dim=0)).norm(dim=1)
    deviations = (subsets.std(dim=1, correction=0) - points.std(dim=0, correction=0)).norm(dim=1)
    return means + deviations + weight * moved


class Sampler(torch.utils.data.Sampler):
    """
    Each batch is the candidate, out of --data_batchmatch_ncomps, that is most similar to a big batch of
    --data_batchmatch_bigbs images. Each batch has a new big batch. The big batch consists of groups of
    samples_per_class images, spread evenly over as many classes as possible. A candidate is bs / samples_per_class of
    its groups, all of different classes, so that a batch is composed as in class_random. An epoch has n_images // bs
    batches, or --iterations_per_epoch, and is a function of the seed, the epoch and the memory bank as it is when the
    epoch begins.

    image_dict: class -> [(path, index)]; image_list: [(path, class)]; storage: the memory bank, embeddings [N, D] of
    all images, in a tensor or what has its `device` and is indexed as a tensor.

    >>> import types
    >>> opt = types.SimpleNamespace(bs=4, samples_per_class=2, seed=0, iterations_per_epoch=None,
    ...                             data_batchmatch_bigbs=8, data_batchmatch_ncomps=3)
    >>> image_dict = {c: [(f'{i}.jpg', i) for i in range(4 * c, 4 * c + 4)] for c in range(3)}
    >>> image_list = [(path, c) for c, images in image_dict.items() for path, _ in images]
    >>> storage = torch.randn(len(image_list), 5)
    >>> sampler = Sampler(opt, image_dict, image_list, storage)
    >>> [len(batch) for batch in sampler]
    [4, 4, 4]
    """

    def __init__(self, opt, image_dict, image_list, storage):
        if opt.bs % opt.samples_per_class:
            raise ValueError(f'--bs {opt.bs} is not divisible by --samples_per_class {opt.samples_per_class}')
        self.per_class = opt.samples_per_class
        self.n_per_batch = opt.bs // opt.samples_per_class
        if self.n_per_batch > len(image_dict):
            raise ValueError(f'--bs {opt.bs} with --samples_per_class {opt.samples_per_class} needs {self.n_per_batch} '
                             f'classes per batch, but there are only {len(image_dict)} training classes; lower --bs '
                             'or raise --samples_per_class')
        if opt.bs < 2:
            raise ValueError(f'--bs {opt.bs}: --data_sampler disthist_batchmatch compares distributions and '
                             'needs at least 2 images per batch')
        if opt.data_batchmatch_bigbs < opt.bs:
            raise ValueError(f'--data_batchmatch_bigbs {opt.data_batchmatch_bigbs}: expected at least --bs {opt.bs}')
        self.images = torch.tensor([index for images in image_dict.values() for _, index in images])  # by class
        self.sizes = torch.tensor([len(images) for images in image_dict.values()])
        self.starts = self.sizes.cumsum(0) - self.sizes
        self.storage = storage
        self.n_candidates = opt.data_batchmatch_ncomps
        self.n_groups = opt.data_batchmatch_bigbs // self.per_class
        self.n_classes = min(self.n_groups, len(image_dict))
        self.seed = opt.seed
        self.epoch = 0
        self.sampler_length = opt.iterations_per_epoch or max(1, len(image_list) // opt.bs)

    def start_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.sampler_length

    @torch.no_grad()
    def __iter__(self):
        generator = torch.Generator().manual_seed(seed_of_epoch(self.seed, self.epoch))
        choices = []
        for _ in range(self.sampler_length):
            images = self.big_batch(generator)
            candidates = self.candidates(generator)
            costs = distance_histogram_costs(self.storage[images], candidates.to(self.storage.device))
            choices.append((images, candidates, costs.argmin()))
        best = torch.stack([i for _, _, i in choices]).tolist()                # the host waits for the device here only
        return iter([images[candidates[i]].tolist() for (images, candidates, _), i in zip(choices, best, strict=True)])

    def big_batch(self, generator):
        """Images [n_groups * samples_per_class]; group g belongs to the (g modulo n_classes)-th sampled class."""
        classes = torch.randperm(len(self.sizes), generator=generator)[:self.n_classes]
        n_rounds = -(-self.n_groups // self.n_classes)
        images = self.sample(classes, n_rounds * self.per_class, generator)
        groups = images.view(self.n_classes, n_rounds, self.per_class).transpose(0, 1).flatten(0, 1)
        return groups[:self.n_groups].flatten()

    def candidates(self, generator):
        """[m, B] candidates: indices into the big batch."""
        classes = torch.rand(self.n_candidates, self.n_classes, generator=generator)
        classes = classes.topk(self.n_per_batch, dim=1).indices
        n_rounds = self.n_groups // self.n_classes + (classes < self.n_groups % self.n_classes)
        groups = random_integers(n_rounds, generator) * self.n_classes + classes
        return (groups[..., None] * self.per_class + torch.arange(self.per_class)).flatten(1)

    def sample(self, classes, n, generator):
        """classes int64 [K] -> n random images of each, [K, n]; no image of a class repeats before all are used."""
        sizes = self.sizes[classes, None]
        keys = torch.rand(len(classes), int(sizes.max()), generator=generator)
        keys = keys.masked_fill(torch.arange(keys.shape[1]) >= sizes, -2)           # no such image
        order = keys.topk(min(n, keys.shape[1]), dim=1).indices
        return self.images[self.starts[classes, None] + order.gather(1, torch.arange(n) % sizes)]


def seed_of_epoch(seed, epoch):
    """A 63-bit seed; different arguments give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(repr((seed, epoch)).encode(), digest_size=8).digest(), 'big') >> 1


def random_integers(limits, generator):
    """Uniform integers from 0 to each limit - 1; `limits` is an int64 tensor of any shape."""
    return (torch.rand(limits.shape, generator=generator, dtype=torch.float64) * limits).long()
