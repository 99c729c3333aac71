"""What the samplers draw with. All randomness comes from a CPU generator, so that it is the same for every device."""
import torch

from utilities.errors import UserError


def classes_per_batch(opt, n_classes=None):
    """--bs / --samples_per_class. Raises UserError where it does not divide, or where fewer than that many train."""
    if opt.bs % opt.samples_per_class:
        raise UserError(f'--bs {opt.bs} is not divisible by --samples_per_class {opt.samples_per_class}')
    n_drawn = opt.bs // opt.samples_per_class
    if n_classes is not None and n_drawn > n_classes:
        raise UserError(f'--bs {opt.bs} with --samples_per_class {opt.samples_per_class} takes {n_drawn} classes a '
                        f'batch, but {n_classes} train; lower --bs or raise --samples_per_class')
    return n_drawn


def deal(n, k, generator):
    """
    Without end, k <= n of the numbers below n, int64 [k], none twice: shuffled decks of all n, dealt one after another.
    A hand that spans two decks takes from the second what it does not hold yet.
    """
    deck = torch.empty(0, dtype=torch.int64)
    while True:
        if len(deck) < k:
            following = torch.randperm(n, generator=generator)
            deck = torch.cat([deck, following[torch.isin(following, deck).int().argsort(stable=True)]])
        yield deck[:k]
        deck = deck[k:]


def below(limits, generator):
    """A uniform integer under each of `limits`, an int64 tensor of any shape."""
    return (torch.rand(limits.shape, generator=generator, dtype=torch.float64) * limits).long()


class ClassImages:
    """
    The images of each class in one flat table, to draw for many classes at once.

    images: int64 [N], class after class.
    sizes, starts: int64 [C], a class's number of images and its place in `images`.
    class_of: int64 [N], the class of each image, counted in the order of image_dict.
    """

    def __init__(self, image_dict):
        self.images = torch.tensor([index for images in image_dict.values() for _, index in images])
        self.sizes = torch.tensor([len(images) for images in image_dict.values()])
        self.starts = self.sizes.cumsum(0) - self.sizes
        self.class_of = torch.empty_like(self.images)
        self.class_of[self.images] = torch.arange(len(self.sizes)).repeat_interleave(self.sizes)

    def draw(self, classes, n, generator):
        """classes int64 [K] -> images [K, n], in random order; a class gives each image once before any comes again."""
        keys = torch.rand(len(classes), int(self.sizes[classes].max()), generator=generator)
        return self.by_key(classes, keys, torch.arange(n).expand(len(classes), n))

    def partners(self, anchors, n, generator):
        """
        anchors int64 [K] -> images [K, n] of their classes, where these suffice none twice and no anchor.

        Anchors of one class share its images, as evenly as their number allows; anchors themselves come last.
        """
        classes = self.class_of[anchors]
        same = classes[:, None] == classes
        first, n_before = same.int().argmax(dim=1), same.tril(-1).sum(dim=1)
        keys = torch.rand(len(classes), int(self.sizes[classes].max()), generator=generator)[first]
        is_anchor = torch.zeros(len(self.images), dtype=torch.bool).index_fill_(0, anchors, True)
        places = (self.starts[classes, None] + torch.arange(keys.shape[1])).clamp(max=len(self.images) - 1)
        keys = keys - is_anchor[self.images[places]].float()
        return self.by_key(classes, keys, n_before[:, None] * n + torch.arange(n))

    def by_key(self, classes, keys, ranks):
        """The images of classes [K] at ranks [K, n] in the order of falling keys [K, largest size]; ranks wrap."""
        sizes = self.sizes[classes, None]
        if not ranks.numel():
            return ranks
        keys = keys.masked_fill(torch.arange(keys.shape[1]) >= sizes, -2)           # no such image
        order = keys.topk(min(int(ranks.max()) + 1, keys.shape[1]), dim=1).indices
        return self.images[self.starts[classes, None] + order.gather(1, ranks % sizes)]
