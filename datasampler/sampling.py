"""Random sampling that the samplers share. All of it uses a CPU generator, so that it is the same on every device."""
import torch

from utilities.errors import UserError


def classes_per_batch(opt, n_classes=None):
    """--bs / --samples_per_class. Raises UserError if it is not a whole number, or more than `n_classes`."""
    if opt.bs % opt.samples_per_class:
        raise UserError(f'--bs {opt.bs} is not divisible by --samples_per_class {opt.samples_per_class}')
    n_per_batch = opt.bs // opt.samples_per_class
    if n_classes is not None and n_per_batch > n_classes:
        raise UserError(f'--bs {opt.bs} with --samples_per_class {opt.samples_per_class} needs {n_per_batch} classes '
                        f'per batch, but there are only {n_classes} training classes; lower --bs or raise '
                        '--samples_per_class')
    return n_per_batch


def random_integers(limits, generator):
    """Uniform integers from 0 to each limit - 1; `limits` is an int64 tensor of any shape."""
    return (torch.rand(limits.shape, generator=generator, dtype=torch.float64) * limits).long()


class ClassImages:
    """
    The images of all classes in one flat tensor, to sample from many classes at once.

    images: int64 [N], image indices sorted by class.
    sizes, starts: int64 [C], each class's number of images and the index of its first image in `images`.
    class_of: int64 [N], the class of each image, numbered in the order of image_dict.
    """

    def __init__(self, image_dict):
        self.images = torch.tensor([index for images in image_dict.values() for _, index in images])
        self.sizes = torch.tensor([len(images) for images in image_dict.values()])
        self.starts = self.sizes.cumsum(0) - self.sizes
        self.class_of = torch.empty_like(self.images)
        self.class_of[self.images] = torch.arange(len(self.sizes)).repeat_interleave(self.sizes)

    def sample(self, classes, n, generator):
        """classes int64 [K] -> n random images of each, [K, n]; no image of a class repeats before all are used."""
        keys = torch.rand(len(classes), int(self.sizes[classes].max()), generator=generator)
        return self.images_by_key(classes, keys, torch.arange(n).expand(len(classes), n))

    def partners(self, anchors, n, generator):
        """
        anchors int64 [K] -> n images of each anchor's class, [K, n]; if the class is large enough, they are distinct
        and none is an anchor.

        Anchors of one class share its images evenly; anchors themselves are used only when the others run out.
        """
        classes = self.class_of[anchors]
        same = classes[:, None] == classes
        first, n_before = same.int().argmax(dim=1), same.tril(-1).sum(dim=1)
        keys = torch.rand(len(classes), int(self.sizes[classes].max()), generator=generator)[first]
        is_anchor = torch.zeros(len(self.images), dtype=torch.bool).index_fill_(0, anchors, True)
        members = (self.starts[classes, None] + torch.arange(keys.shape[1])).clamp(max=len(self.images) - 1)
        keys = keys - is_anchor[self.images[members]].float()
        return self.images_by_key(classes, keys, n_before[:, None] * n + torch.arange(n))

    def images_by_key(self, classes, keys, ranks):
        """
        Sorts the images of each of `classes` [K] by descending keys [K, largest size] and returns the images at the
        `ranks` [K, n]; a rank beyond the size of the class wraps around.
        """
        sizes = self.sizes[classes, None]
        if not ranks.numel():
            return ranks
        keys = keys.masked_fill(torch.arange(keys.shape[1]) >= sizes, -2)           # no such image
        order = keys.topk(min(int(ranks.max()) + 1, keys.shape[1]), dim=1).indices
        return self.images[self.starts[classes, None] + order.gather(1, ranks % sizes)]
