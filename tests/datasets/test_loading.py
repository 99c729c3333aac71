"""How images are loaded: exactly as Pillow and torchvision's transforms would; in uint8, until the device."""
import multiprocessing
import os
import random
import socket
from multiprocessing.reduction import DupFd

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms import v2

import datasets
from datasets import base, decoding, pipeline, transforms
from datasets.loading import TrainingLoader, ignore_lost_connections
from evaluation.embedding import evaluation_batches, network_input
from tests.helpers import manual_seed
from utilities import errors
from utilities.errors import UserError, WorkerLost


@pytest.fixture
def photos(tmp_path):
    """JPEG and PNG files: in colours, grey, black and white, CMYK, and turned by EXIF."""
    random = np.random.default_rng(0)
    colours = Image.fromarray(random.integers(0, 256, (103, 151, 3), dtype=np.uint8))
    grey = colours.convert('L')
    colours.save(tmp_path / 'colours.jpg')
    colours.convert('CMYK').save(tmp_path / 'cmyk.jpg')
    grey.save(tmp_path / 'grey.jpg')
    grey.save(tmp_path / 'grey.png')
    grey.convert('1').save(tmp_path / 'bits.png')
    exif = Image.Exif()
    exif[0x0112] = 6
    colours.save(tmp_path / 'turned.jpg', exif=exif)
    return sorted(tmp_path.iterdir())


def as_before(path):
    """What a plain program does: Pillow decodes, turns and converts the whole image."""
    with Image.open(path) as image:
        return ImageOps.exif_transpose(image).convert('RGB')


@pytest.mark.parametrize('name', transforms.AUGMENTATIONS)
def test_augmented_images_are_those_of_torchvisions_transforms(name, photos, opt):
    steps = transforms.AUGMENTATIONS[name](64)
    for ours, expected in zip(transforms.select(opt(augmentation=name), 64), steps, strict=True):
        reference = v2.Compose([*expected, v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
        for path in photos:
            manual_seed(7)
            found = ours(decoding.read_upright(path))
            manual_seed(7)
            assert torch.equal(found, reference(as_before(path))) and found.is_contiguous(), path


FURTHER = {
    'color_jitter': ([.4, 0., .3, .1], lambda: [v2.ColorJitter(.4, 0, .3, .1)]),
    'randaugment': ([3, 15], lambda: [v2.RandAugment(3, 15)]),
    'random_erasing': (.7, lambda: [v2.ToImage(), v2.RandomErasing(.7, value=(124, 116, 104))]),
}


@pytest.mark.parametrize('name, flags', [('base', ['color_jitter']), ('adv', ['color_jitter']),
                                         ('none', ['randaugment']), ('base', ['random_erasing']), ('adv', [*FURTHER])])
def test_further_augmentation_is_that_of_torchvisions_transforms(name, flags, photos, opt):
    """It follows the other transforms; grey photos, which have one channel until then, come out as RGB ones do."""
    training, evaluation = transforms.select(opt(augmentation=name, **{flag: FURTHER[flag][0] for flag in flags}), 64)
    steps = [step for step in transforms.AUGMENTATIONS[name](64)[0]
             if not ('color_jitter' in flags and isinstance(step, v2.ColorJitter))]
    further = [step for flag in flags for step in FURTHER[flag][1]()]
    reference = v2.Compose([*steps, *further, v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    plain, changed = transforms.select(opt(augmentation=name), 64), 0
    assert repr(plain[1]) == repr(evaluation)
    for path in photos:
        for seed in range(3):
            images = []
            for augment, photo in ((training, decoding.read_upright(path)), (reference, as_before(path)),
                                   (plain[0], decoding.read_upright(path))):
                manual_seed(seed)
                images.append(augment(photo))
            assert torch.equal(*images[:2]) and type(images[0]) is torch.Tensor, path
            changed += not torch.equal(images[0], images[2])
    assert changed > len(photos)


def test_randaugment_shifts_white_into_characters(opt):
    training, _ = transforms.select(opt(randaugment=[2, 9]), 32, are_characters=True)
    assert training.transforms[-1].fill == 255


@pytest.mark.parametrize('name', ['base', 'adv'])
def test_batches_have_the_images_of_torchvisions_transforms(name, photos, opt):
    """By seeds, an image twice; and by the global generator."""
    images = base.ImageSet(base.ImageTable(photos, ['a'] * len(photos)), range(len(photos)),
                           transforms.select(opt(augmentation=name), 32)[0])
    items = [*((index, 3 * index + 1) for index in range(len(photos))), (4, 5)]
    batch, labels, indices = images.batch(items)
    assert indices.tolist() == [*range(len(photos)), 4] and not labels.any()
    reference = v2.Compose([*transforms.AUGMENTATIONS[name](32)[0], v2.ToImage()])
    state = torch.get_rng_state()
    for (index, seed), found in zip(items, batch, strict=True):
        manual_seed(seed)
        assert torch.equal(found, reference(as_before(photos[index]))), photos[index]
    torch.set_rng_state(state)
    unseeded, _, _ = images.batch(range(len(photos)))
    torch.set_rng_state(state)
    for path, found in zip(photos, unseeded, strict=True):
        assert torch.equal(found, reference(as_before(path))), path


def test_loaders_yield_uint8_and_the_networks_input_is_the_float_item(patterns, opt):
    data = datasets.select(opt(dataset='folder', source_path=str(patterns)), 16)
    for kernels in (0, 2):
        flags = opt(kernels=kernels, device=torch.device('cpu'), iterations_per_epoch=2)
        batches = [[(0, 3), (7, 4)], [(9, 5)]]
        loader = TrainingLoader(flags, data.train, batches)
        loader.begin_loading()
        loader.batches[:] = batches
        for batch, (images, labels, indices) in zip(batches, loader.loader, strict=True):
            items = [data.train[item] for item in batch]
            assert images.dtype == torch.uint8 and images.shape == (len(batch), 3, 16, 16)
            assert torch.equal(network_input(images, flags.device), torch.stack([image for image, _, _ in items]))
            assert labels.tolist() == [label for _, label, _ in items] and indices.tolist() == [i for i, _ in batch]
        test = data.evaluation['test']
        images, _, _ = next(iter(test.loader(flags, evaluation_batches(flags, test)[0])))
        assert torch.equal(network_input(images, flags.device)[3], test[3][0])
    images = torch.rand(2, 3, 4, 4)
    assert network_input(images, torch.device('cpu')) is images


@pytest.mark.parametrize('end', [[], [v2.ToImage()], [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
                                 [v2.ToImage(), v2.ToDtype(torch.float64, scale=True)]])
def test_transforms_may_end_as_torchvisions_do(end, patterns, opt):
    """Networks get the same image from each of these ends, in a batch as alone."""
    images = datasets.select(opt(dataset='folder', source_path=str(patterns), augmentation='none'), 16).train
    expected, _, _ = images[0]
    images.transform = pipeline.Pipeline([*images.transform.transforms, *end])
    batch, _, _ = images.batch([0, 1])
    found = network_input(batch, torch.device('cpu'))
    assert torch.equal(found[0], images[0][0]) and found.dtype == torch.float32
    assert torch.allclose(found[0], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize('end, what', [
    ([v2.ToImage(), v2.ToDtype(torch.float32, scale=False)], r'a tensor \[3, 16, 16\] of float32 from'),
    ([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([.5] * 3, [.5] * 3)], '.* from -'),
    ([lambda image: image.convert('CMYK')], 'a PIL image of mode CMYK'), ([np.asarray], 'ndarray'),
    ([v2.ToImage(), lambda image: image.long()], 'of int64 from')])
def test_other_results_of_transforms_get_a_sentence(end, what, patterns, opt):
    images = datasets.select(opt(dataset='folder', source_path=str(patterns), augmentation='none'), 16).train
    images.transform = pipeline.Pipeline([*images.transform.transforms, *end])
    with pytest.raises(UserError, match=f'the transforms of the images return .*{what}.*; expected a'):
        images.batch([0])


def test_random_transforms_do_not_depend_on_workers(patterns, opt):
    """Python's random and numpy.random are seeded per image, too, and their states stay as they are."""
    epochs = []
    for kernels in (0, 2):
        flags = opt(dataset='folder', source_path=str(patterns), kernels=kernels, device=torch.device('cpu'),
                    color_jitter=[.4, .4, .4, .1], randaugment=[2, 9], random_erasing=.5, iterations_per_epoch=3)
        train = datasets.select(flags, 16).train
        train.transform.transforms.append(lambda image: v2.functional.adjust_brightness(
            image, 1 + random.random() * np.random.uniform()))
        before = random.getstate(), np.random.get_state()[1].tolist()
        loader = TrainingLoader(flags, train, [[0, 5, 9], [5, 1, 2], [0, 0, 0]])
        epochs.append([torch.cat([images for images, _, _ in loader.epoch(epoch)]) for epoch in (1, 2, 1)])
        assert before == (random.getstate(), np.random.get_state()[1].tolist()) or kernels
    assert all(torch.equal(*pair) for pair in zip(*epochs, strict=True))
    first, second, again = epochs[0]
    assert torch.equal(first, again) and not torch.equal(first, second) and not torch.equal(first[0], first[6])


@pytest.mark.parametrize('iterations', [0, 3])
def test_a_sampler_without_a_batch_is_refused(iterations, patterns, opt):
    """As one of public code with fewer images than --bs has."""
    data = datasets.select(opt(dataset='folder', source_path=str(patterns)), 16).train
    flags = opt(iterations_per_epoch=iterations, kernels=0, data_sampler='own', device=torch.device('cpu'))
    with pytest.raises(UserError, match='--data_sampler own gives no batch of --bs 112 from 36 images'):
        TrainingLoader(flags, data, []).epoch(1)


@pytest.mark.parametrize('message, is_lost', [
    ('DataLoader worker (pid(s) 7) exited unexpectedly', True), ('Pin memory thread exited unexpectedly', True),
    ('Caught RuntimeError in DataLoader worker process 0.\n... Pin memory thread exited unexpectedly', False),
    ('CUDA error: an illegal memory access was encountered', False)])
def test_the_errors_that_mean_a_lost_worker(message, is_lost):
    with pytest.raises(WorkerLost if is_lost else RuntimeError), errors.explained():
        raise RuntimeError(message)


def test_a_full_shared_memory_is_a_sentence(patterns, opt, monkeypatch):
    """In a thread of the worker, its error would lose the batch, and the run would wait for it without end."""
    def full(tensor):
        raise RuntimeError('unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)')
    monkeypatch.setattr(torch.Tensor, 'share_memory_', full)
    data = datasets.select(opt(dataset='folder', source_path=str(patterns)), 16).train
    loader = TrainingLoader(opt(iterations_per_epoch=1, kernels=1), data, [[0, 1]])
    sentence = 'The shared memory of this machine, /dev/shm, is full, .*: give --kernels 0'
    with pytest.raises(errors.RunFailed, match=sentence), errors.explained():
        next(iter(loader.epoch(1)))


def test_a_worker_prints_nothing_if_the_main_process_breaks_off_a_connection(capfd):
    ours, theirs = multiprocessing.Pipe()

    def work():
        ignore_lost_connections(0)
        theirs.send(DupFd(0))                                          # as it hands over the memory of a batch
        theirs.recv()

    worker = multiprocessing.get_context('fork').Process(target=work)
    worker.start()
    handed_over = ours.recv()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(handed_over._id[0])                         # and ends before it is answered
    os.close(handed_over.detach())
    ours.send('end')
    worker.join()
    assert worker.exitcode == 0 and not capfd.readouterr().err


class Sized(torch.utils.data.Dataset):
    """Images of a size that changes, with the process that has loaded them as label."""
    size = 24

    def __len__(self):
        return 4

    def __getitem__(self, item):
        return torch.zeros(3, self.size, self.size), os.getpid(), item[0]


@pytest.mark.parametrize('is_picklable', [True, False])
def test_workers_start_again_if_the_data_set_has_changed(is_picklable, opt):
    """As by a start_epoch() of its transform. One that cannot be pickled may have changed in every epoch."""
    images, found = Sized(), []
    if not is_picklable:
        images.function = lambda: None
    loader = TrainingLoader(opt(kernels=2, device=torch.device('cpu'), seed=1, views=1), images, [[0, 1], [2, 3]])
    for epoch, size in enumerate((24, 24, 32), start=1):
        images.size = size
        batches = [*loader.epoch(epoch)]
        assert [batch.shape[-1] for batch, _, _ in batches] == [size] * 2
        found.append({pid for _, labels, _ in batches for pid in labels.tolist()})
    assert (found[0] == found[1]) == is_picklable and not found[1] & found[2]
