"""Batch composition as promised, a function of seed and epoch, and bad sizes refused."""
from collections import Counter

import pytest
import torch

import datasampler
from datasets.loading import TrainingLoader
from tests.helpers import images_of, sampler_of
from utilities.errors import UserError

SIZES = [7, 1, 12, 3, 9, 2]
BY_CLASS = ['class_random', 'hierarchical', 'fid_batchmatch', 'disthist_batchmatch']
STORING = [name for name, module in datasampler.SAMPLERS.items() if getattr(module, 'REQUIRES_STORAGE', False)]


def build(name, opt, sizes, superclasses=None, **flags):
    return sampler_of(opt(data_sampler=name, **flags), images_of(sizes, superclasses))


def by_class(batch, image_list):
    """{class: its images in the batch}"""
    found = {}
    for index in batch:
        found.setdefault(image_list[index][1], []).append(index)
    return found


@pytest.fixture(params=datasampler.SAMPLERS)
def name(request):
    return request.param


def test_indices_are_valid_and_an_epoch_is_a_function_of_seed_and_epoch(name, opt):
    epochs = []
    for seed, epoch in ((0, 1), (0, 1), (0, 2), (1, 1)):
        sampler = build(name, opt, SIZES, bs=8, samples_per_class=2, seed=seed)
        sampler.start_epoch(epoch)
        torch.manual_seed(len(epochs))                      # the global generator plays no part
        epochs.append(list(sampler))
    assert epochs[0] == epochs[1] and epochs[0] != epochs[2] and epochs[0] != epochs[3]
    assert len(epochs[0]) == len(sampler) == (5 if name == 'balanced' else 34 // 8)
    assert all(len(batch) == 8 and all(type(i) is int and 0 <= i < 34 for i in batch) for batch in epochs[0])


def test_iterations_per_epoch_and_small_data_sets(name, opt):
    sampler = build(name, opt, [4] * 5, bs=4, iterations_per_epoch=13)
    assert len(list(sampler)) == len(sampler) == 13
    if name != 'image_random':
        assert len(list(build(name, opt, [1, 1, 1, 1], bs=8, samples_per_class=2))) == 1


@pytest.mark.parametrize('by', BY_CLASS)
def test_classes_and_images_without_replacement_where_there_are_enough(by, opt):
    sizes = SIZES * 2
    sampler = build(by, opt, sizes, bs=12, samples_per_class=3, iterations_per_epoch=50, data_batchmatch_bigbs=40)
    for batch in sampler:
        found = by_class(batch, images_of(sizes).image_list)
        assert len(found) == 4 and all(len(drawn) == 3 for drawn in found.values())
        for label, drawn in found.items():
            counts = Counter(drawn)
            assert len(counts) == min(3, sizes[label]) and max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize('by', ['class_random', 'hierarchical'])
def test_classes_and_images_are_drawn_uniformly(by, opt):
    """So they are where super-classes are equally large."""
    sampler = build(by, opt, [4] * 6, bs=4, samples_per_class=2, iterations_per_epoch=1000)
    counts = Counter(index for batch in sampler for index in batch)
    expected = 1000 * 4 / 24
    assert all(abs(counts[index] - expected) < 5 * expected ** .5 for index in range(24))


@pytest.mark.parametrize('n_classes, per_batch', [(12, 4), (10, 4), (7, 6), (5, 5)])
def test_data_cover_epoch_visits_every_class_once(n_classes, per_batch, opt):
    sizes = [5] * n_classes
    flags = {'bs': 2 * per_batch, 'samples_per_class': 2, 'data_cover_epoch': True}
    for epoch in range(20):
        sampler = build('class_random', opt, sizes, **flags)
        sampler.start_epoch(epoch)
        visits = [set(by_class(batch, images_of(sizes).image_list)) for batch in sampler]
        assert len(visits) == len(sampler) == -(-n_classes // per_batch)
        assert all(len(classes) == per_batch for classes in visits)          # none twice within a batch
        n_visits = Counter(label for classes in visits for label in classes)
        assert set(n_visits) == set(range(n_classes))
        assert sum(n_visits.values()) - n_classes == -n_classes % per_batch  # what fills the last batch
    longer = build('class_random', opt, sizes, **flags, iterations_per_epoch=3 * n_classes)
    n_visits = Counter(label for batch in longer for label in by_class(batch, images_of(sizes).image_list))
    assert set(n_visits.values()) == {3 * per_batch}                         # deck after deck


def test_full_random_draws_classes_uniformly_and_forces_a_positive(opt):
    sizes = [40, 4, 1, 15]
    image_list = images_of(sizes).image_list
    sampler = build('full_random', opt, sizes, bs=3, iterations_per_epoch=1600)
    drawn = Counter()
    for *others, positive in sampler:
        drawn.update(image_list[index][1] for index in others)
        partners = [index for index in others if image_list[index][1] == image_list[positive][1]]
        assert partners and (set(partners) != {positive} or sizes[image_list[positive][1]] == 1)
    assert all(abs(drawn[label] - 800) < 5 * 800 ** .5 for label in range(4))


def test_image_random_is_uniform_over_images_and_repeats_none(opt):
    sampler = build('image_random', opt, [40, 4, 1, 15], bs=7)
    counts = Counter()
    for epoch in range(600):
        sampler.start_epoch(epoch)
        drawn = [index for batch in sampler for index in batch]
        assert len(drawn) == len(set(drawn)) == 56                           # 8 batches, and 4 images left over
        counts.update(drawn)
    assert all(abs(counts[index] - 560) < 5 * (560 * 4 / 60) ** .5 for index in range(60))
    assert all(len(set(batch)) == 7 for batch in build('image_random', opt, [5, 5], bs=7, iterations_per_epoch=40))


@pytest.mark.parametrize('sizes, bs, per_class', [
    (SIZES, 6, 3), (SIZES, 5, 1), ([4] * 6, 12, 2), ([4] * 3, 20, 2), ([50, 2, 2, 2, 2], 8, 2), ([1, 1, 1], 8, 2),
    (list(range(1, 40)), 28, 4)])
def test_balanced_covers_all_images_with_as_many_classes_a_batch_as_fit(sizes, bs, per_class, opt):
    image_list, k = images_of(sizes).image_list, bs // per_class
    n_groups = {label: -(-size // per_class) for label, size in enumerate(sizes)}
    for epoch in range(10):
        sampler = build('balanced', opt, sizes, bs=bs, samples_per_class=per_class)
        sampler.start_epoch(epoch)
        batches = list(sampler)
        assert {index for batch in batches for index in batch} == set(range(sum(sizes)))
        assert len(batches) == -(-sum(n_groups.values()) // k)               # no more than it takes
        for batch in batches:
            groups = [batch[i:i + per_class] for i in range(0, bs, per_class)]
            labels = []
            for group in groups:
                (label, drawn), = by_class(group, image_list).items()        # a group is of one class
                assert len(set(drawn)) == min(per_class, sizes[label])
                labels.append(label)
            # A class comes as often as its groups make it come, rounded up; once where that can be.
            n_missing = k * len(batches) - sum(n_groups.values())
            room = sum(max(0, len(batches) - n) for n in n_groups.values())
            extra = -(-n_missing // len(sizes)) if n_missing > room else 0
            for label, n in Counter(labels).items():
                assert n <= -(-(max(n_groups[label], len(batches)) + extra) // len(batches))
            if max(n_groups.values()) <= len(batches) and n_missing <= room:
                assert len(set(labels)) == k


def test_hierarchical_takes_few_superclasses_and_shares_evenly(opt):
    superclasses = ['a'] * 8 + ['b'] * 8 + ['c'] * 8 + ['d'] * 2
    sizes, drawn = [3] * 26, Counter()
    for batch in build('hierarchical', opt, sizes, superclasses, bs=24, samples_per_class=3, iterations_per_epoch=600):
        shares = Counter(superclasses[label] for label in by_class(batch, images_of(sizes).image_list))
        assert sorted(shares.values()) == ([2, 6] if 'd' in shares else [4, 4])
        drawn.update(list(shares))
    assert all(abs(drawn[name] - 300) < 5 * 150 ** .5 for name in 'abcd')   # whatever their size
    for batch in build('hierarchical', opt, sizes, superclasses, bs=66, samples_per_class=3, iterations_per_epoch=50):
        shares = Counter(superclasses[label] for label in by_class(batch, images_of(sizes).image_list))
        assert len(shares) >= 3 and sum(shares.values()) == 22               # two have too few classes
    flags = {'bs': 4, 'samples_per_class': 2, 'data_hierarchical_superclasses': 1}
    for batch in build('hierarchical', opt, sizes, superclasses, **flags):
        assert len({superclasses[label] for label in by_class(batch, images_of(sizes).image_list)}) == 1


def test_the_super_class_of_a_character_is_its_alphabet(opt, tmp_path):
    from datasets import omniglot
    for folder in ('omniglot/images/Greek.character01', 'omniglot/images/Japanese_(katakana).character02'):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / '1.png').touch()
    assert omniglot.load(opt(source_path=tmp_path)).levels == [{
        'Greek.character01': 'Greek', 'Japanese_(katakana).character02': 'Japanese_(katakana)'}]


@pytest.mark.parametrize('by', ['greedy_coreset', 'd2_coreset'])
def test_coresets_give_each_anchor_other_images_of_its_class(by, opt):
    sizes = [30, 30, 3, 1, 12, 9]
    image_list = images_of(sizes).image_list
    for batch in build(by, opt, sizes, bs=24, samples_per_class=3, iterations_per_epoch=60):
        anchors, groups = batch[::3], [batch[i:i + 3] for i in range(0, 24, 3)]
        assert len(set(anchors)) == 8
        n_anchors = Counter(image_list[anchor][1] for anchor in anchors)
        for group in groups:
            (label, drawn), = by_class(group, image_list).items()
            assert len(set(drawn)) == min(3, sizes[label]) or n_anchors[label] > 1
        for label, drawn in by_class(batch, image_list).items():             # of several anchors together, too
            assert len(set(drawn)) == min(3 * n_anchors[label], sizes[label])


NO_HIERARCHY = {'data_sampler': 'hierarchical'}


@pytest.mark.parametrize('flags, sentence', [
    *[({'data_sampler': by, 'bs': 7, 'samples_per_class': 2}, '--bs 7 is not divisible by --samples_per_class 2')
      for by in datasampler.SAMPLERS if by not in ('full_random', 'image_random')],
    *[({'data_sampler': by, 'bs': 12}, 'needs 6 classes per batch, but there are only 4 training') for by in BY_CLASS],
    ({'data_sampler': 'full_random', 'bs': 1}, '--bs 1: full_random needs at least 2'),
    ({'data_sampler': 'image_random', 'bs': 21}, '--bs 21: image_random .* without replacement, .* 20 training images'),
    (NO_HIERARCHY, '--data_sampler hierarchical needs the super-class of each training class, and there are none here'),
    ({'data_sampler': 'hierarchical', 'data_hierarchical_superclasses': 4}, '--data_hierarchical_superclasses 4: .* 3'),
    *[({'data_sampler': by, 'data_batchmatch_bigbs': 7}, '--data_batchmatch_bigbs 7: expected at least --bs 8')
      for by in ('fid_batchmatch', 'disthist_batchmatch')],
    ({'data_sampler': 'fid_batchmatch', 'bs': 1, 'samples_per_class': 1}, '--bs 1: --data_sampler fid_batchmatch'),
    *[({'data_sampler': by, 'data_batchmatch_bigbs': 3}, 'needs 4 anchors, more than the 3 images of the big batch')
      for by in ('greedy_coreset', 'd2_coreset')],
    *[({'data_sampler': by, 'data_mb_mom': 1.0}, '--data_mb_mom 1.0: expected a number below 1') for by in STORING],
    ({'data_sampler': 'd2_coreset', 'data_sampler_lowproj_dim': 128}, 'lowproj_dim 128: .* less than --embed_dim 128'),
], ids=str)
def test_what_cannot_be_is_refused_in_a_sentence(flags, sentence, opt):
    superclasses = [None] * 4 if flags is NO_HIERARCHY else None
    with pytest.raises(UserError, match=sentence):
        datasampler.select(opt(**{'bs': 8, 'samples_per_class': 2} | flags), images_of([5] * 4, superclasses))


class Recorder(torch.utils.data.Dataset):
    """Gives back what it is asked for."""

    def __len__(self):
        return 24

    def __getitem__(self, item):
        return item


@pytest.mark.parametrize('by', ['class_random', 'full_random', 'd2_coreset'])
def test_a_loaders_batches_do_not_depend_on_workers_and_repeated_draws_differ_in_seed(by, opt):
    epochs = []
    for kernels in (0, 2):
        flags = opt(kernels=kernels, bs=8, samples_per_class=4, iterations_per_epoch=3, data_sampler=by)
        loader = TrainingLoader(flags, Recorder(), sampler_of(flags, images_of([1] * 24)))
        epochs.append([[tuple(map(int, pair)) for pair in zip(*batch, strict=True)]
                       for epoch in (1, 2) for batch in loader.epoch(epoch)])
    assert epochs[0] == epochs[1] and len(epochs[0]) == 6
    seeds = [seed for batch in epochs[0] for _, seed in batch]
    assert len(set(seeds)) == len(seeds) == 48


def test_a_sampler_with_a_global_generator_and_no_start_epoch_works(opt):
    """As users' own samplers do it; one that is shorter than --iterations_per_epoch starts over."""
    class Own(torch.utils.data.Sampler):
        def __len__(self):
            return 2

        def __iter__(self):
            return iter(torch.randperm(24)[:8].view(2, 4))

    loader = TrainingLoader(opt(kernels=0, iterations_per_epoch=5), Recorder(), Own())
    assert sum(1 for _ in loader.epoch(1)) == 5


@pytest.mark.parametrize('sampler, sizes, chosen', [
    ('class_random', [20] * 56, (112, 2)), ('class_random', [20] * 50, (112, 4)), ('class_random', [3] * 50, (111, 3)),
    ('class_random', [1] * 9, (18, 2)), ('hierarchical', [500] * 2, (112, 56)), ('class_random', [9], (112, 2)),
    ('fid_batchmatch', [2, 2, 2, 5, 5, 50], (30, 5)), ('image_random', [5] * 10, (50, 2)),
    ('balanced', [6] * 6, (112, 2)), ('full_random', [6] * 6, (112, 2)),
])
def test_the_batch_that_small_sets_allow(sampler, sizes, chosen, opt, capsys):
    images, flags = images_of(sizes), opt(data_sampler=sampler, given=[])
    datasampler.choose_batch(flags, images)
    assert (flags.bs, flags.samples_per_class) == chosen
    assert ('Too few training images' in capsys.readouterr().out) == (chosen != (112, 2))
    if len(sizes) > 1:
        assert len(datasampler.select(flags, images)) > 0
    explicit = opt(data_sampler=sampler, given=['bs'])
    datasampler.choose_batch(explicit, images)
    assert explicit.bs == 112
