"""Batches selected from a random big batch by its stored embeddings: the best of random candidates, or a coreset."""
import torch

from datasampler.sampling import ClassImages, classes_per_batch, random_integers
from utilities.errors import UserError

FLAGS = {
    'batchmatch_bigbs': {'default': 512, 'at_least': 1, 'help': 'coreset and batchmatch samplers: number of images in'
                                                                ' the big batch that a batch is selected from'},
    'batchmatch_ncomps': {'default': 10, 'at_least': 1,
                          'help': 'batchmatch samplers: number of candidates per batch'},
}


class Matching:
    """
    Each batch is the candidate, out of --data_batchmatch_ncomps, that is most similar to a big batch of
    --data_batchmatch_bigbs images. Each batch has a new big batch.

    The big batch consists of groups of samples_per_class images, spread evenly over as many classes as possible. A
    candidate is bs / samples_per_class of its groups, all of different classes, so that a batch is composed as in
    class_random.
    """

    def __init__(self, opt, image_dict):
        self.of_class, self.per_class = ClassImages(image_dict), opt.samples_per_class
        self.n_per_batch, self.n_candidates = classes_per_batch(opt, len(image_dict)), opt.data_batchmatch_ncomps
        if opt.bs < 2:
            raise UserError(f'--bs {opt.bs}: --data_sampler {opt.data_sampler} compares distributions and needs at '
                            'least 2 images per batch')
        if opt.data_batchmatch_bigbs < opt.bs:
            raise UserError(f'--data_batchmatch_bigbs {opt.data_batchmatch_bigbs}: expected at least --bs {opt.bs}')
        self.n_groups = opt.data_batchmatch_bigbs // self.per_class
        self.n_classes = min(self.n_groups, len(image_dict))

    @torch.no_grad()
    def batches(self, n_batches, storage, cost, generator):
        """
        cost: (points [n, D], candidates [m, B], indices into points) -> costs [m].

        Returns: a list of n_batches lists of image indices.
        """
        choices = []
        for _ in range(n_batches):
            images, candidates = self.big_batch(generator), self.candidates(generator)
            costs = cost(storage.points(images), candidates.to(storage.device))
            choices.append((images, candidates, costs.argmin()))
        best = torch.stack([i for _, _, i in choices]).tolist()                # the host waits for the device here only
        return [images[candidates[i]].tolist() for (images, candidates, _), i in zip(choices, best, strict=True)]

    def big_batch(self, generator):
        """Images [n_groups * samples_per_class]; group g belongs to the (g modulo n_classes)-th sampled class."""
        classes = torch.randperm(len(self.of_class.sizes), generator=generator)[:self.n_classes]
        n_rounds = -(-self.n_groups // self.n_classes)
        images = self.of_class.sample(classes, n_rounds * self.per_class, generator)
        groups = images.view(self.n_classes, n_rounds, self.per_class).transpose(0, 1).flatten(0, 1)
        return groups[:self.n_groups].flatten()

    def candidates(self, generator):
        """[m, B] candidates: indices into the big batch."""
        classes = torch.rand(self.n_candidates, self.n_classes, generator=generator)
        classes = classes.topk(self.n_per_batch, dim=1).indices
        n_rounds = self.n_groups // self.n_classes + (classes < self.n_groups % self.n_classes)
        groups = random_integers(n_rounds, generator) * self.n_classes + classes
        return (groups[..., None] * self.per_class + torch.arange(self.per_class)).flatten(1)


class Coreset:
    """
    Each batch is bs / samples_per_class anchors, each followed by samples_per_class - 1 other random images of its
    class. The anchors are chosen from a big batch of --data_batchmatch_bigbs images (all images, if there are fewer),
    sampled anew for each batch, uniformly and without replacement. No image repeats if the classes are large enough.
    """

    def __init__(self, opt, image_dict):
        self.of_class, self.n_partners = ClassImages(image_dict), opt.samples_per_class - 1
        self.n_anchors = classes_per_batch(opt)
        self.n_images = len(self.of_class.images)
        self.size = min(opt.data_batchmatch_bigbs, self.n_images)
        if self.n_anchors > self.size:
            raise UserError(f'--bs {opt.bs} with --samples_per_class {opt.samples_per_class} needs {self.n_anchors} '
                            f'anchors, more than the {self.size} images of the big batch (--data_batchmatch_bigbs '
                            f'{opt.data_batchmatch_bigbs}, {self.n_images} training images)')

    @torch.no_grad()
    def batches(self, n_batches, storage, choose, generator):
        """
        choose: (points [n, D], k, generator) -> k indices into points, int64 [k].

        Returns: a list of n_batches lists of image indices.
        """
        choices = []
        for _ in range(n_batches):
            images = torch.randperm(self.n_images, generator=generator)[:self.size]
            choices.append((images, choose(storage.points(images), self.n_anchors, generator)))
        chosen = torch.stack([indices for _, indices in choices]).cpu()        # the host waits for the device here only
        anchors = [images[indices] for (images, _), indices in zip(choices, chosen, strict=True)]
        return [torch.cat([a[:, None], self.of_class.partners(a, self.n_partners, generator)], dim=1).flatten().tolist()
                for a in anchors]
