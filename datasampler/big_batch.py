"""From a random big batch of stored embeddings to a batch: the cheapest of random candidates, or a coreset."""
import torch

from datasampler.draws import ClassImages, below, classes_per_batch
from utilities.errors import UserError


class Matching:
    """
    Each batch is the one of --data_batchmatch_ncomps candidates that is most like a big batch of
    --data_batchmatch_bigbs images, a new one for each batch.

    The big batch is groups of samples_per_class images, spread evenly over as many classes as it reaches. A candidate
    is bs / samples_per_class of its groups, of different classes; so a batch is made up as class_random promises.
    """

    def __init__(self, opt, image_dict):
        self.of_class, self.per_class = ClassImages(image_dict), opt.samples_per_class
        self.n_drawn, self.n_candidates = classes_per_batch(opt, len(image_dict)), opt.data_batchmatch_ncomps
        if opt.bs < 2:
            raise UserError(f'--bs {opt.bs}: --data_sampler {opt.data_sampler} compares distributions; at least 2')
        if opt.data_batchmatch_bigbs < opt.bs:
            raise UserError(f'--data_batchmatch_bigbs {opt.data_batchmatch_bigbs}: expected at least --bs {opt.bs}')
        self.n_groups = opt.data_batchmatch_bigbs // self.per_class
        self.n_classes = min(self.n_groups, len(image_dict))

    @torch.no_grad()
    def batches(self, n_batches, storage, cost, generator):
        """
        cost(points [n, D], candidates [m, B] of places in it) -> [m].

        Returns a list of n_batches lists of indices.
        """
        chosen = []
        for _ in range(n_batches):
            images, candidates = self.big_batch(generator), self.candidates(generator)
            costs = cost(storage.points(images), candidates.to(storage.device))
            chosen.append((images, candidates, costs.argmin()))
        best = torch.stack([place for _, _, place in chosen]).tolist()          # the only wait for the device
        return [images[candidates[place]].tolist() for (images, candidates, _), place in zip(chosen, best, strict=True)]

    def big_batch(self, generator):
        """Images [n_groups * samples_per_class]; group g is of the (g modulo n_classes)-th of the drawn classes."""
        classes = torch.randperm(len(self.of_class.sizes), generator=generator)[:self.n_classes]
        n_rounds = -(-self.n_groups // self.n_classes)
        images = self.of_class.draw(classes, n_rounds * self.per_class, generator)
        groups = images.view(self.n_classes, n_rounds, self.per_class).transpose(0, 1).flatten(0, 1)
        return groups[:self.n_groups].flatten()

    def candidates(self, generator):
        """Places in the big batch, [m, B]."""
        classes = torch.rand(self.n_candidates, self.n_classes, generator=generator).topk(self.n_drawn, dim=1).indices
        rounds = below(self.n_groups // self.n_classes + (classes < self.n_groups % self.n_classes), generator)
        groups = rounds * self.n_classes + classes
        return (groups[..., None] * self.per_class + torch.arange(self.per_class)).flatten(1)


class Coreset:
    """
    Each batch is bs / samples_per_class anchors that are chosen from a new big batch of --data_batchmatch_bigbs images,
    drawn uniformly and without replacement (all images, where there are fewer); after each anchor come
    samples_per_class - 1 other random images of its class. Where classes are large enough, no image comes twice.
    """

    def __init__(self, opt, image_dict):
        self.of_class, self.n_partners = ClassImages(image_dict), opt.samples_per_class - 1
        self.n_anchors = classes_per_batch(opt)
        self.n_images = len(self.of_class.images)
        self.size = min(opt.data_batchmatch_bigbs, self.n_images)
        if self.n_anchors > self.size:
            raise UserError(f'--bs {opt.bs} with --samples_per_class {opt.samples_per_class} takes {self.n_anchors} '
                            f'anchors from a big batch of {self.size} images (--data_batchmatch_bigbs '
                            f'{opt.data_batchmatch_bigbs}, {self.n_images} train)')

    @torch.no_grad()
    def batches(self, n_batches, storage, choose, generator):
        """
        choose(points [n, D], k, generator) -> k places in it, int64 [k].

        Returns a list of n_batches lists of indices.
        """
        chosen = []
        for _ in range(n_batches):
            images = torch.randperm(self.n_images, generator=generator)[:self.size]
            chosen.append((images, choose(storage.points(images), self.n_anchors, generator)))
        places = torch.stack([places for _, places in chosen]).cpu()            # the only wait for the device
        anchors = [images[p] for (images, _), p in zip(chosen, places, strict=True)]
        return [torch.cat([a[:, None], self.of_class.partners(a, self.n_partners, generator)], dim=1).flatten().tolist()
                for a in anchors]
