"""Features of a frozen backbone that are kept, so that each image goes through the backbone once in a run."""
import torch


class KeptFeatures:
    """
    The pooled features of images, kept as long as `network` does not train the layers that compute them.

    others: networks with the same backbone as long as it is not trained, such as the moving average.
    """

    def __init__(self, network, *others):
        self.networks = (network, *others)
        self.found = {}                                  # {(ImageSet, its transform as text): {index: features [F]}}
        self.needed = set()                              # ImageSets that had to be loaded although features are kept

    def of(self, images, network):
        """
        {index: features [F], on the CPU} of an ImageSet, to be read and added to; None if no features of `network` are
        kept. Each call asks the trained network again: once it trains its backbone, all features are forgotten.
        Images with another transform have features of their own.
        """
        if not self.networks[0].has_fixed_features():
            self.found.clear()
            self.networks = self.networks[:1]            # the backbone of the others is no longer the same
            return None
        if network not in self.networks:
            return None
        return self.found.setdefault((images, repr(images.transform)), {})

    def suffice(self, images, network):
        """Whether an ImageSet need not be loaded: all features are kept, and nothing has asked for the images since."""
        rows = self.of(images, network)
        return rows is not None and len(rows) == len(images) and images not in self.needed


class Batch:
    """
    A batch of an ImageSet whose features are kept (`images.kept`). For all other uses it acts as the tensor of its
    images that a loader gives, and loads it when it is needed: batch.flip(-1) is the ordinary tensor of the mirrored
    images, whose features are computed, not looked up.

    images:  the ImageSet.
    indices: [B], positions in it.
    pixels:  [B, 3, H, W] as a loader gives them; None if they are not loaded yet.
    """
    requires_grad = False

    def __init__(self, images, indices, pixels=None):
        self.images = images
        self.indices = indices
        self.pixels = pixels

    def __len__(self):
        return len(self.indices)

    def __getattr__(self, name):
        return getattr(self.loaded(), name)

    def tensor_split(self, n):
        return [Batch(self.images, part) for part in self.indices.tensor_split(n)]

    def loaded(self):
        if self.pixels is None:
            self.images.kept.needed.add(self.images)
            loaded = [pixels for pixels, _, _ in self.images.loaded(self.indices.tolist())]
            self.pixels = self.images.transform.collate(loaded)
        return self.pixels

    def features(self, network):
        """The features [B, F] of the images by `network`, on the CPU; None unless all are kept."""
        rows = self.images.kept.of(self.images, network)
        indices = self.indices.tolist()
        if rows is None or not rows.keys() >= {*indices}:
            return None
        return torch.stack([rows[index] for index in indices])

    def keep(self, network, features):
        """Keeps the features [B, F] of the images by `network`, if they may be kept."""
        rows = self.images.kept.of(self.images, network)
        if rows is not None:
            rows.update(zip(self.indices.tolist(), features.detach().cpu(), strict=True))
