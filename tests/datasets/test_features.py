"""--freeze backbone: features that are computed once give the results of features that are computed in each epoch."""
import os
import shutil

import numpy as np
import pytest
import torch

import datasets
import main
import parts
from datasets import features
from tests.helpers import assert_resumes_exactly, assert_same_end, folder_of, full_after
from utilities.files import temporary_path

NOTE = 'are computed once'
OF_EVALUATED = f'features of the evaluated images {NOTE}'
OF_BOTH = f'features of the evaluated and training images {NOTE}'
OF_TRAINING = f'features of the training images {NOTE}'
FROZEN = ['--freeze', 'backbone', '--arch', 'conv4_frozen_normalize', '--no_train_metrics', 'false',
          '--evaluation_metrics', 'e_recall@1']


@pytest.fixture
def calls(monkeypatch):
    """The number of images of each call of a conv4, the test network's backbone."""
    counts, forward = [], torch.nn.Sequential.forward

    def counted(module, images):
        if isinstance(module[0], torch.nn.Sequential) and len(images) > 1:
            counts.append(len(images))
        return forward(module, images)
    monkeypatch.setattr(torch.nn.Sequential, 'forward', counted)
    return counts


@pytest.mark.parametrize('flags', [
    ['--augmentation', 'none', '--embed_norm', 'batch', '--ema', '.9', '--micro_bs', '5', '--eval_size', '20', '--pool',
     'avg', '--no_train_metrics', '--warmup', '1', '--views', '2'],
    ['--augmentation', 'none', '--arch', 'torchvision:mobilenet_v2_normalize', '--bs', '10', '--input_size', '32',
     '--n_epochs', '1'],
    ['--augmentation', 'base', '--use_tv_split', '--bs', '8'],
    ['--augmentation', 'none', '--data_sampler', 'd2_coreset', '--data_batchmatch_bigbs', '24', '--embed_init', 'pca',
     '--eval_bs', '7'],
], ids=' '.join)
def test_a_run_ends_with_the_same_bits(flags, quick, run, tmp_path, capsys):
    assert run(*quick, *FROZEN, *flags) == 0
    assert (OF_BOTH if flags[1] == 'none' else OF_EVALUATED) in capsys.readouterr().out
    assert run(*quick, *FROZEN, *flags, '--keep_features', 'false', '--group', 'again') == 0
    assert NOTE not in capsys.readouterr().out
    assert_same_end(folder_of(tmp_path), folder_of(tmp_path, 'again_s1'))


def test_an_image_is_read_and_given_to_the_backbone_once_by_all_runs(quick, run, calls, monkeypatch):
    """
    36 training and 36 test images. Each run compares the first batch of 12 of both splits and 2 batches as in training
    with the features; without keeping, a run has 3 batches in each of 2 epochs.
    """
    read, batch = [], datasets.ImageSet.batch
    monkeypatch.setattr(datasets.ImageSet, 'batch',
                        lambda images, items: read.append(len(items)) or batch(images, items))
    compared = 12 + 12 + 2 * 12
    for flags, expected in ((['--augmentation', 'none'], 36 + 36 + compared),
                            (['--augmentation', 'none', '--loss', 'triplet'], compared),
                            (['--augmentation', 'none', '--seed', '2'], 36 + 36 + compared),       # another backbone
                            (['--augmentation', 'none', '--input_bgr'], 36 + 36 + compared),
                            (['--augmentation', 'none', '--loss', 'margin'], compared),            # of the first run
                            (['--augmentation', 'none', '--keep_features', 'false'], 3 * (36 + 36) + 2 * 3 * 12),
                            (['--augmentation', 'none', '--random_erasing', '.5'], 12 + 12 + 2 * 3 * 12)):
        calls.clear()
        read.clear()
        assert run(*quick, *FROZEN, *flags) == 0
        assert sum(calls) == sum(read) == expected, flags


def test_features_of_a_damaged_or_foreign_file_are_computed_anew(quick, run, tmp_path, capsys, patterns):
    flags = [*quick, *FROZEN, '--augmentation', 'none']
    assert run(*flags, '--keep_features', 'false') == 0
    assert run(*flags, '--group', 'first') == 0
    folder = features.cache_folder()
    files = sorted(folder.glob('features_*'))
    assert len(files) == 2 and not [*folder.glob('.*')]              # one of a split each, and no temporary file
    before = {file: file.read_bytes() for file in files}
    for damage in ('cut off', 'of other images', 'of a changed file', 'no folder'):
        if damage == 'cut off':
            files[0].write_bytes(before[files[0]][:-4])
        elif damage == 'of other images':
            files[0].write_bytes(before[files[1]])
        elif damage == 'of a changed file':
            os.utime(next(patterns.rglob('*.png')))                  # the split with this image gets another file
        else:
            shutil.rmtree(folder)
            folder.write_text('a file in place of the folder')
        assert run(*flags, '--group', damage.replace(' ', '_')) == 0
        if damage == 'no folder':
            assert 'Note: the features are not kept for further runs: ' in capsys.readouterr().err
        else:
            assert {file: file.read_bytes() for file in files} == before
            assert len([*folder.glob('features_*')]) == (3 if damage == 'of a changed file' else 2)
    for group in ('first', 'cut_off', 'of_other_images', 'of_a_changed_file', 'no_folder'):
        assert_same_end(folder_of(tmp_path), folder_of(tmp_path, f'{group}_s1'))


def test_the_cache_keeps_the_files_used_last(tmp_path, monkeypatch, capsys):
    """It removes temporary files of killed runs, and takes no features that need more room than it has."""
    monkeypatch.setattr(features, 'LIMIT', 100)
    rows = torch.arange(10.).reshape(5, 2)                            # 40 bytes
    files = [tmp_path / f'features_{number}.float32' for number in range(3)]
    for number, file in enumerate(files[:2]):
        features.write(file, rows)
        os.utime(file, (number, number))
    assert torch.equal(features.read(files[0], (5, 2)), rows)
    killed = temporary_path(files[1])
    killed.write_bytes(bytes(90))
    os.utime(killed, (2, 2))
    features.write(files[2], rows)
    features.write(files[1], torch.zeros(5, 6))                       # 120 bytes
    assert sorted(tmp_path.iterdir()) == [files[0], files[2]]
    assert 'the features are not kept for further runs: they need 0.0 GB, and at most 1e-07' in capsys.readouterr().err
    assert features.read(files[0], (5, 3)) is features.read(files[1], (5, 2)) is None
    np.testing.assert_array_equal(np.fromfile(files[0], np.float32), np.arange(10))


def test_a_full_disk_of_the_cache_is_named_with_its_file(tmp_path, capsys):
    with full_after(1000):
        features.write(tmp_path / 'features_0.float32', torch.ones(4000, 2))
    assert f'not kept for further runs: {tmp_path / "features_0.float32"}: its disk is full' in capsys.readouterr().err


def test_a_resumed_run_keeps_the_features_of_its_own_weights(quick, run, tmp_path):
    """The backbone is random here: that of a new process has other weights until the checkpoint is read."""
    assert_resumes_exactly(run, tmp_path, [*quick, *FROZEN, '--augmentation', 'none'])


def test_features_that_depend_on_their_batch_are_not_kept(quick, run, tmp_path, monkeypatch, capsys):
    class OfBatch(torch.nn.Module):
        def forward(self, maps):
            return maps + 1e-6 * maps.mean()

    build = parts.architectures.conv4.backbone

    def backbone(opt):
        built = build(opt)
        built.network.append(OfBatch())
        return built
    monkeypatch.setattr(parts.architectures.conv4, 'backbone', backbone)
    flags = [*quick, *FROZEN, '--augmentation', 'none']
    assert run(*flags) == 0
    assert OF_EVALUATED in capsys.readouterr().out
    assert run(*flags, '--keep_features', 'false', '--group', 'again') == 0
    assert_same_end(folder_of(tmp_path), folder_of(tmp_path, 'again_s1'))


@pytest.mark.parametrize('flags', [
    ['--freeze', 'none'], ['--freeze', '3'], ['--pool', 'gem'], ['--amp', 'bfloat16'], ['--n_epochs', '0'],
    ['--eval_autocast', 'bfloat16'], ['--keep_features', 'false'],
    ['--arch', 'timm:test_vit', '--input_size', '32', '--lora_rank', '2'],
], ids=' '.join)
def test_nothing_is_kept_where_results_could_change(flags, quick, capsys):
    opt = main.configuration.parse([*quick, *FROZEN, '--augmentation', 'none', *flags])
    parts.keep_features(opt, parts.build(opt))
    assert NOTE not in capsys.readouterr().out
