"""Wrong labels for training: a share of the training images gets a label sampled uniformly from the other classes."""
import numpy as np

from datasets.splits import digest
from utilities.errors import UserError
from utilities.randomness import derive


def apply(opt, images):
    """
    Changes the labels of round(--label_noise * N) of the N training images; no image is changed twice. The seed is
    --seed. Returns what splits.yaml says of it: the number of changed images, a hash of all labels, {path: the
    class that it was given}. Raises UserError if a class is left without images.
    """
    # numpy guarantees the numbers of RandomState across its versions, so that a resumed run has the same labels
    random = np.random.RandomState(derive('label_noise', opt.seed) % 2 ** 32)
    chosen = np.sort(random.permutation(len(images))[:round(opt.label_noise * len(images))])
    labels = images.labels.copy()
    if images.n_classes > 1:
        labels[chosen] = (labels[chosen] + random.randint(1, images.n_classes, len(chosen))) % images.n_classes
    counts = np.bincount(labels, minlength=images.n_classes)
    if (counts == 0).any():
        raise UserError(f'--label_noise {opt.label_noise} leaves {sum(counts == 0)} classes without training images; '
                        f'first {images.class_names[counts.argmin()]}; give a smaller share or larger classes')
    images.labels = labels
    return {'n_images': len(chosen), 'hash': digest(repr(labels.tolist())),
            'given': {str(images.sources[i]): images.class_names[labels[i]] for i in chosen}}
