"""A trained network without the data that it was trained on, and the embeddings of any images."""
import os
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

import configuration
import datasets
import parts
from datasets import decoding
from datasets.loading import Loader
from datasets.pipeline import Pipeline
from evaluation.embedding import compared, embed_batch, network_id
from flags import command_line
from retrieval import unknown
from utilities import stopping
from utilities.device import is_gpu
from utilities.errors import RunFailed, UserError
from utilities.image_size import sides
from utilities.randomness import preserved

SLACK = 0.01                 # by which floating-point images may leave [0, 1], as after a bicubic resizing


class Network(torch.nn.Module):
    """
    Images [B, 3, H, W], RGB, floating in [0, 1] or uint8, on any device -> embeddings [B, D], float32, as main.py
    --evaluate ranks them, but without --pca and --eval_autocast. With --eval_features, they are the pooled features;
    with --eval_views, their mean over the views; with --eval_normalize, they have norm 1. Raises UserError for images
    of another shape or type.

    model:      the EmbeddingNetwork, in evaluation mode; none of its parameters requires gradients.
    input_size: H and W, one number where they are equal.
    source:     the run folder or checkpoint that it comes from.
    settings:   {flag: value} of configuration.embedding_settings.
    id:         a checksum of weights and settings: 16 hexadecimal digits. Embeddings of networks with different ids
                cannot be compared.
    open_set, no_threshold: the threshold of the run, or None and the reason (unknown.calibrated).
    """

    def __init__(self, opt, model, source):
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        self.input_size = opt.eval_size or model.input_size
        self.source = str(source)
        self.settings = configuration.embedding_settings(opt)
        self.id = network_id(model, configuration.settings_in_id(opt))
        self.open_set, self.no_threshold = unknown.calibrated(source, self.id)

    @property
    def device(self):
        return self.model.mean.device

    @property
    def width(self):
        """The dimension of the embeddings."""
        return self.model.n_features if self.settings['eval_features'] else self.settings['embed_dim']

    def forward(self, images):
        shape = list(images.shape)
        expected = [3, *sides(self.input_size)]
        if len(shape) != 4 or shape[1:] != expected:
            raise UserError(f'expected RGB images [B, {", ".join(map(str, expected))}], as the transform of the '
                            f'network makes them, not {shape}')
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise UserError(f'expected images of type uint8, or floating ones in [0, 1], not {images.dtype}')
        if images.is_floating_point() and images.numel() and not torch.compiler.is_exporting():
            low, high = torch.aminmax(images)
            if not (low >= -SLACK and high <= 1 + SLACK):
                raise UserError(f'expected floating-point images with values in [0, 1], not from {low:g} to {high:g}: '
                                'divide by 255, or give uint8; the network itself normalises colours')
        images = images if images.dtype == torch.uint8 else images.float()
        embeddings, features = embed_batch(self.model, images, self.settings)
        points = features if self.settings['eval_features'] else embeddings
        return compared(points, self.settings['eval_normalize'])


@dataclass
class Transform:
    """
    A PIL image of any mode and size -> float32 RGB [3, H, W] in [0, 1]: rotated as its EXIF data say, transparent parts
    on white, resized and cropped as in evaluation. pipeline: the same for photos that are already decoded.
    """
    pipeline: Pipeline

    def __call__(self, image):
        return self.pipeline(prepared(image))


def require_images(images):
    """Raises UserError for what is neither a PIL image nor a path."""
    for image in images:
        if not (isinstance(image, str | os.PathLike) or hasattr(image, 'getexif')):
            raise UserError(f'expected PIL images or paths, not {type(image).__name__}: Image.open(io.BytesIO(data)) '
                            'makes an image of the bytes of a file, and Image.fromarray(array) of an array [H, W, 3] '
                            'of uint8')


def prepared(image):
    """A PIL image -> a copy, upright and in RGB."""
    if isinstance(image, str | os.PathLike):
        raise UserError(f'{image}: the transform takes PIL images: Image.open(path)')
    require_images([image])
    return decoding.upright(image.copy()).convert('RGB')


def load(run, device='auto'):
    """
    A trained network, ready to embed any images.

    Args:
        run:    a run folder, of which the last checkpoint is loaded, or a checkpoint file.
        device: auto, cpu, cuda or mps; auto takes a GPU if there is one.

    Returns: network, a Network: images [B, 3, H, W] -> embeddings [B, D], in evaluation mode; and transform: a PIL
    image -> one image [3, H, W] for it, on the CPU.

    The data of the run are not needed, a download only for --arch timm:hf-hub:NAME, and torch's settings and random
    numbers stay as they were. Raises UserError where `run` is neither, or is damaged, or has --pca.
    """
    return restore(configuration.parse(['--evaluate', str(run), *command_line.tokens({'device': device})]), run)


def restore(opt, run):
    """The Network of a run, and the Transform of its images, with the flags of `opt`. Raises UserError as load()."""
    if opt.pca:
        raise UserError(f'{run}: --pca {opt.pca} is fitted on the training images in each evaluation, and is not '
                        'applied here. Give --pca 0. Where there is no such flag, export the network and give FOLDER '
                        f'instead of the run: python Evaluate_Network.py {run} export --hub FOLDER --pca 0')
    with preserved():
        model = parts.restore_network(opt, run)
    return Network(opt, model, run), Transform(datasets.pipelines(opt, model.input_size)[1])


@dataclass
class Photos(torch.utils.data.Dataset):
    """Paths or PIL images; items are (index, pixels uint8 [H, W, 3], None), or (index, None, why it cannot be read)."""
    images: list
    pipeline: Pipeline

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if not command_line.is_text(str(image)):
            return index, None, (f'{decoding.printable_path(image)}: names of images cannot hold bytes that are not '
                                 'UTF-8; rename it')
        try:
            photo = self.read(image)
            return index, self.pipeline.load(photo), None
        except UserError as error:
            reason = decoding.decoding_reason(error.__context__ or error)        # one of the transforms has no context
            return index, None, f'{image}: not a readable image ({reason})'

    def read(self, image):
        if not hasattr(image, 'getexif'):
            return decoding.read_upright(image)
        with decoding.named(image):
            return prepared(image)

    def collate(self, items):
        """Items -> indices, uint8 [B, 3, H, W] or None, and {index: reason} for images that cannot be read."""
        indices = [index for index, _, reason in items if reason is None]
        photos = [pixels for _, pixels, reason in items if reason is None]
        broken = {index: reason for index, _, reason in items if reason is not None}
        batch = self.pipeline.collate(photos) if photos else None
        return indices, batch, broken


def embed_in_batches(network, transform, images, bs=112, kernels=0):
    """
    Yields, batch by batch in the order of `images` (paths, or PIL images): the indices [B] of the images that can be
    read, their embeddings, a float32 array [B, D], and {index: reason} of the others. kernels: number of data workers.
    Raises RunFailed for the first embedding that is not finite.
    """
    photos = Photos(list(images), transform.pipeline)
    loader = Loader(photos, batch_size=bs, num_workers=kernels, collate_fn=photos.collate,
                    pin_memory=is_gpu(network.device), generator=torch.Generator())
    bar = tqdm(total=len(photos), desc='embed photos', leave=False, disable=None if len(photos) > 1 else True)
    with bar:
        for indices, batch, broken in stopping.checked(loader):
            found = np.empty((0, network.width), np.float32)
            if indices:
                with torch.inference_mode():              # around the loop, it would be the mode of the caller as well
                    found = network(batch).float().cpu().numpy()
            bad = ~np.isfinite(found).all(axis=1)
            if bad.any():
                path = photos.images[indices[bad.argmax()]]
                raise RunFailed(f'the embedding of {path} is not finite: the network of {network.source} is broken')
            bar.update(len(indices) + len(broken))
            yield indices, found, broken


def embed(network, transform, images, bs=112, kernels=0):
    """
    The embeddings of images in their order, a float32 tensor [N, D] on the CPU.

    Args:
        images:  paths or PIL images; or a single one.
        bs:      number of images that are embedded at once.
        kernels: number of processes that load images; with 0, this process loads them.

    Raises UserError for the first image that cannot be read, and for what is no image; RunFailed as embed_in_batches().
    """
    is_one = isinstance(images, str | os.PathLike | bytes) or hasattr(images, 'getexif')
    images = [images] if is_one or not hasattr(images, '__iter__') else [*images]
    require_images(images)
    found = [np.empty((0, network.width), np.float32)]
    for _, embeddings, broken in embed_in_batches(network, transform, images, bs, kernels):
        if broken:
            raise UserError(next(iter(broken.values())))
        found.append(embeddings)
    return torch.from_numpy(np.concatenate(found))
