"""Batch composition as promised, a function of seed and epoch, and bad sizes refused."""
from collections import Counter

import pytest
import torch

import datasampler
from utilities.errors import UserError
from utilities.loading import TrainingLoader


def images(sizes):
    """image_dict and image_list of classes with so many images each."""
    image_list = [(f'{label}_{i}.png', label) for label, size in enumerate(sizes) for i in range(size)]
    image_dict = {label: [] for label in range(len(sizes))}
    for index, (path, label) in enumerate(image_list):
        image_dict[label].append((path, index))
    return image_dict, image_list


def build(name, opt, sizes, **flags):
    return datasampler.SAMPLERS[name].Sampler(opt(**flags), *images(sizes))


@pytest.fixture(params=datasampler.SAMPLERS)
def name(request):
    return request.param


def test_indices_are_valid_and_an_epoch_is_a_function_of_seed_and_epoch(name, opt):
    epochs = []
    for seed, epoch in ((0, 1), (0, 1), (0, 2), (1, 1)):
        sampler = build(name, opt, [7, 1, 12, 3, 9, 2], bs=8, samples_per_class=2, seed=seed)
        sampler.set_epoch(epoch)
        torch.manual_seed(epoch + 17)                       # the global generator plays no part
        epochs.append(list(sampler))
    assert epochs[0] == epochs[1] and epochs[0] != epochs[2] and epochs[0] != epochs[3]
    assert len(epochs[0]) == len(sampler) == 34 // 8
    assert all(len(batch) == 8 and all(0 <= i < 34 for i in batch) for batch in epochs[0])


def test_iterations_per_epoch_and_small_data_sets(name, opt):
    assert len(list(build(name, opt, [4] * 5, bs=4, iterations_per_epoch=13))) == 13
    assert len(list(build(name, opt, [1, 1, 1, 1], bs=8, samples_per_class=2))) == 1


def test_class_random_draws_without_replacement_where_it_can(opt):
    sizes = [7, 1, 12, 3, 9, 2]
    _, image_list = images(sizes)
    sampler = build('class_random', opt, sizes, bs=12, samples_per_class=3, iterations_per_epoch=50)
    for batch in sampler:
        by_class = {}
        for index in batch:
            by_class.setdefault(image_list[index][1], []).append(index)
        assert len(by_class) == 4 and all(len(found) == 3 for found in by_class.values())
        for label, found in by_class.items():
            counts = Counter(found)
            assert len(counts) == min(3, sizes[label]) and max(counts.values()) - min(counts.values()) <= 1


def test_class_random_draws_classes_and_images_uniformly(opt):
    sampler = build('class_random', opt, [4] * 6, bs=4, samples_per_class=2, iterations_per_epoch=3000)
    counts = Counter(index for batch in sampler for index in batch)
    expected = 3000 * 4 / 24
    assert all(abs(counts[index] - expected) < 5 * expected ** .5 for index in range(24))


def test_full_random_draws_classes_uniformly_and_forces_a_positive(opt):
    sizes = [40, 4, 1, 15]
    _, image_list = images(sizes)
    sampler = build('full_random', opt, sizes, bs=3, iterations_per_epoch=4000)
    drawn = Counter()
    for *others, positive in sampler:
        drawn.update(image_list[index][1] for index in others)
        partners = [index for index in others if image_list[index][1] == image_list[positive][1]]
        assert partners and (set(partners) != {positive} or sizes[image_list[positive][1]] == 1)
    assert all(abs(drawn[label] - 2000) < 5 * 2000 ** .5 for label in range(4))


@pytest.mark.parametrize('name, flags, sentence', [
    ('class_random', {'bs': 7, 'samples_per_class': 2}, '--bs 7 is not divisible by --samples_per_class 2'),
    ('class_random', {'bs': 12, 'samples_per_class': 2}, 'takes 6 classes a batch, but 4 train'),
    ('full_random', {'bs': 1}, '--bs 1: full_random needs at least 2'),
])
def test_bad_sizes_are_refused(name, flags, sentence, opt):
    with pytest.raises(UserError, match=sentence):
        build(name, opt, [5] * 4, **flags)


class Recorder(torch.utils.data.Dataset):
    """Gives back what it is asked for."""

    def __len__(self):
        return 24

    def __getitem__(self, item):
        return item


def test_a_loaders_batches_do_not_depend_on_workers_and_repeated_draws_differ_in_seed(opt):
    epochs = []
    for kernels in (0, 2):
        flags = opt(kernels=kernels, bs=8, samples_per_class=4, iterations_per_epoch=3)
        sampler = datasampler.SAMPLERS['class_random'].Sampler(flags, *images([1] * 24))
        loader = TrainingLoader(flags, Recorder(), sampler)
        epochs.append([[tuple(map(int, pair)) for pair in zip(*batch, strict=True)]
                       for epoch in (1, 2) for batch in loader.epoch(epoch)])
    assert epochs[0] == epochs[1] and len(epochs[0]) == 6
    seeds = [seed for batch in epochs[0] for _, seed in batch]
    assert len(set(seeds)) == len(seeds) == 48


def test_a_sampler_with_a_global_generator_and_no_set_epoch_works(opt):
    """As users' own samplers do it; one that is shorter than --iterations_per_epoch starts over."""
    class Own(torch.utils.data.Sampler):
        def __len__(self):
            return 2

        def __iter__(self):
            return iter(torch.randperm(24)[:8].view(2, 4))

    loader = TrainingLoader(opt(kernels=0, iterations_per_epoch=5), Recorder(), Own())
    assert sum(1 for _ in loader.epoch(1)) == 5
