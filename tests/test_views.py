"""--views and --unsupervised: several augmented views of each image in a batch, and images as classes of their own."""
import shlex

import pytest
import torch

import configuration
import datasampler
import datasets
import parts
from datasampler import SAMPLERS
from datasets.loading import TrainingLoader
from records import checkpoint
from tests.helpers import assert_resumes_exactly, folder_of, images_of, rows_of, sampler_of
from utilities.errors import UserError
from utilities.randomness import derive

SIZES = [5, 7, 3, 6, 4, 8]
FEW = ['--evaluation_metrics', 'e_recall@1']


def sampled(flags, epoch=3):
    """The batches of an epoch, lists of (index, seed)."""
    sampler = sampler_of(flags, images_of(SIZES))
    sampler.start_epoch(epoch)
    return TrainingLoader(flags, torch.utils.data.TensorDataset(torch.zeros(sum(SIZES))), sampler).sampled(epoch)


@pytest.mark.parametrize('sampler', SAMPLERS)
def test_a_batch_has_the_images_of_a_smaller_one_several_times(sampler, opt):
    """One view: the images and seeds of the sampler as it is. Three: the same images, each view with its own seed."""
    common = {'data_sampler': sampler, 'kernels': 0, 'samples_per_class': 2, 'data_batchmatch_bigbs': 20,
              'embed_dim': 8, 'seed': 4}
    plain, own = opt(bs=8, **common), sampler_of(opt(bs=8, **common), images_of(SIZES))
    own.start_epoch(3)
    batches = [list(map(int, batch)) for batch in own]
    seeds = [derive(4, 3, position) for position in range(sum(map(len, batches)))]
    found = sampled(plain)
    assert [[index for index, _ in batch] for batch in found] == batches
    assert [seed for batch in found for _, seed in batch] == seeds
    views = sampled(opt(bs=24, views=3, **common))
    assert [[index for index, _ in batch] for batch in views] == [
        [index for index in batch for _ in range(3)] for batch in batches]
    seeds = [seed for batch in views for _, seed in batch]
    assert seeds == [derive(4, 3, position) for position in range(3 * sum(map(len, batches)))]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize('sampler', [name for name in SAMPLERS if name != 'hierarchical'])
def test_every_sampler_takes_images_that_are_alone_in_their_classes(sampler, opt):
    flags = opt(data_sampler=sampler, kernels=0, samples_per_class=1, bs=10, views=2, data_batchmatch_bigbs=20,
                embed_dim=8, unsupervised=True)
    batches = TrainingLoader(flags, torch.utils.data.TensorDataset(torch.zeros(24)),
                             sampler_of(flags, images_of([1] * 24))).sampled(1)
    assert len(batches) >= 4
    for batch in batches:
        indices = [index for index, _ in batch]
        assert len(indices) == 10 and indices[::2] == indices[1::2]
        assert len(set(indices)) == 5 or sampler == 'full_random'                # which samples with replacement


def built(quick, flags, **given):
    opt = configuration.parse([*quick, *shlex.split(flags)])
    vars(opt).update(given)
    return opt, parts.build(opt)


def test_each_image_is_its_own_class_in_training_and_keeps_its_label_in_evaluation(quick):
    flags = '--loss multisimilarity+proxyanchor --batch_mining none'
    _, plain = built(quick, flags)
    opt, own = built(quick, f'{flags} --unsupervised --views 2 --samples_per_class 1')
    assert opt.n_classes == len(own.data.train) == 36 and sorted(own.data.train.labels) == list(range(36))
    assert own.criterion.criteria[1].proxies.shape == (36, 16) and plain.criterion.criteria[1].proxies.shape == (6, 16)
    assert own.data.train.paths == plain.data.train.paths and own.data.description == plain.data.description
    for name, images in own.data.evaluation.items():
        assert images.labels.tolist() == plain.data.evaluation[name].labels.tolist() and images.n_classes == 6
    images, labels, indices = next(iter(TrainingLoader(opt, own.data.train, own.sampler).epoch(1)))
    assert torch.equal(labels[::2], labels[1::2]) and len(labels[::2].unique()) == 6
    assert torch.equal(indices[::2], indices[1::2])
    assert all(not torch.equal(one, other) for one, other in zip(images[::2], images[1::2], strict=True))


def test_one_image_per_class_is_the_default_without_labels():
    assert configuration.parse(['--unsupervised']).samples_per_class == 1
    assert configuration.parse(['--views', '2']).samples_per_class == 2


@pytest.mark.parametrize('flags', [
    '--views 3 --loss margin --batch_mining distance --data_sampler greedy_coreset --data_batchmatch_bigbs 20',
    '--views 2 --unsupervised --samples_per_class 1 --loss ntxent+proxyanchor --batch_mining none --micro_bs 5 '
    '--xbm_size 30 --xbm_start 1 --data_sampler image_random',
    '--views 2 --unsupervised --samples_per_class 1 --loss margin --batch_mining distance --data_sampler '
    'fid_batchmatch --data_batchmatch_bigbs 20 --data_mb_mom 0.5',
], ids=['memory bank of a sampler', 'memory bank of a loss', 'batchmatch'])
def test_resumed_runs_end_with_the_same_bits_for_any_number_of_workers(flags, quick, run, tmp_path):
    assert_resumes_exactly(run, tmp_path, [*quick, *FEW, '--kernels', '2', *shlex.split(flags)], '--kernels', '0')


def test_without_labels_a_run_is_another_one_and_evaluates_the_same_images(quick, run, tmp_path):
    arguments = [*quick, *FEW, '--n_epochs', '1', '--loss', 'supcon', '--batch_mining', 'none', '--views', '2',
                 '--samples_per_class', '1']
    assert run(*arguments) == 0 and run(*arguments, '--unsupervised', '--group', 'own') == 0
    (before, *trained), (same, *other) = rows_of(folder_of(tmp_path)), rows_of(folder_of(tmp_path, 'own_s1'))
    assert before == same and trained != other
    assert run('--evaluate', folder_of(tmp_path, 'own_s1')) == 0
    states = checkpoint.load(folder_of(tmp_path, 'own_s1') / checkpoint.LAST)
    assert states['settings']['samples_per_class'] == 1 and states['settings']['unsupervised']


@pytest.mark.parametrize('flags, sentence', [
    ('--bs 10 --views 3', '--bs 10 is not divisible by --views 3, the number of times that each image is in its batch'),
    ('--unsupervised --samples_per_class 2', '--samples_per_class 2: with --unsupervised, a class has one image'),
])
def test_flags_that_cannot_be_are_refused(flags, sentence):
    with pytest.raises(UserError, match=sentence):
        configuration.parse(flags.split())


@pytest.mark.parametrize('flags, sentence', [
    ('--views 2 --bs 12 --samples_per_class 4', '--views 2: of --bs 12, the sampler chooses 6 images, which are its '
     '--bs: --bs 6 is not divisible by --samples_per_class 4'),
    ('--unsupervised --samples_per_class 1 --loss supcon --batch_mining none',
     '--unsupervised: an image is alone in its class, and --loss supcon needs pairs of a class; give --views 2'),
    ('--unsupervised --samples_per_class 1 --views 2 --data_sampler hierarchical',
     '^--data_sampler hierarchical needs the super-class of each training class, .*with --unsupervised, none has'),
    ('--samples_per_class 1 --loss supcon --batch_mining none', '--samples_per_class 1: --data_sampler class_random'),
])
def test_runs_that_cannot_be_are_refused(flags, sentence, quick):
    with pytest.raises(UserError, match=sentence):
        built(quick, flags)


@pytest.mark.parametrize('sampler, sizes, flags, chosen', [
    ('class_random', [20] * 50, {'views': 2}, (112, 2)), ('class_random', [20] * 20, {'views': 2}, (112, 4)),
    ('class_random', [1] * 30, {'views': 2, 'unsupervised': True, 'samples_per_class': 1}, (60, 1)),
    ('image_random', [1] * 300, {'views': 2, 'unsupervised': True, 'samples_per_class': 1}, (112, 1)),
    ('image_random', [5] * 4, {'views': 4}, (80, 2)),
])
def test_the_batch_that_small_sets_allow(sampler, sizes, flags, chosen, opt):
    images, flags = images_of(sizes), opt(data_sampler=sampler, given=[], **flags)
    datasampler.choose_batch(flags, images)
    assert (flags.bs, flags.samples_per_class) == chosen
    assert len(datasampler.select(flags, images)) > 0


def test_super_classes_of_the_evaluation_are_those_of_the_labels(opt, patterns):
    data = datasets.select(opt(dataset='folder', source_path=str(patterns), unsupervised=True), 16)
    assert data.train.superclass_labels is None and data.train.n_classes == 36
    assert data.evaluation['train'].class_names == [f'class_{c:02d}' for c in range(6)]
