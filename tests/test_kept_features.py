"""--freeze backbone: features that are computed once give the results of features that are computed in each epoch."""
import pytest
import torch

import main
import parts
from tests.helpers import assert_resumes_exactly, assert_same_end, folder_of

NOTE = 'are computed once and kept in memory'
OF_TRAINING = f'{NOTE}, and so are the features of the training images'
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
    ['--augmentation', 'none', '--embed_norm', 'batch', '--ema', '.9', '--micro_bs', '5'],
    ['--augmentation', 'none', '--eval_size', '20', '--pool', 'avg', '--no_train_metrics', '--warmup', '1'],
    ['--augmentation', 'none', '--arch', 'torchvision:mobilenet_v2_normalize', '--bs', '10', '--input_size', '48',
     '--n_epochs', '1'],
    ['--augmentation', 'base', '--use_tv_split', '--bs', '8'],
    ['--augmentation', 'none', '--data_sampler', 'd2_coreset', '--data_batchmatch_bigbs', '24'],
], ids=' '.join)
def test_a_run_ends_with_the_same_bits(flags, quick, run, tmp_path, capsys):
    assert run(*quick, *FROZEN, *flags) == 0
    assert (OF_TRAINING if flags[1] == 'none' else f'{NOTE}\n') in capsys.readouterr().out
    assert run(*quick, *FROZEN, *flags, '--keep_features', 'false', '--group', 'again') == 0
    assert NOTE not in capsys.readouterr().out
    assert_same_end(folder_of(tmp_path), folder_of(tmp_path, 'again_s1'))


def test_each_image_is_given_to_the_backbone_once(quick, run, calls):
    """36 training and 36 test images; 2 batches of 12 are compared. Without keeping, 3 batches in each of 2 epochs."""
    assert run(*quick, *FROZEN, '--augmentation', 'none') == 0
    assert sum(calls) == 36 + 36 + 2 * 12
    calls.clear()
    assert run(*quick, *FROZEN, '--augmentation', 'none', '--keep_features', 'false', '--group', 'again') == 0
    assert sum(calls) == 3 * (36 + 36) + 2 * 3 * 12
    calls.clear()
    assert run(*quick, *FROZEN, '--augmentation', 'none', '--random_erasing', '.5', '--group', 'augmented') == 0
    assert sum(calls) == 36 + 36 + 2 * 3 * 12


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
    assert 'not the features of the training images, which are not bit-identical' in capsys.readouterr().out
    assert run(*flags, '--keep_features', 'false', '--group', 'again') == 0
    assert_same_end(folder_of(tmp_path), folder_of(tmp_path, 'again_s1'))


@pytest.mark.parametrize('flags', [
    ['--freeze', 'none'], ['--freeze', '3'], ['--pool', 'gem'], ['--amp', 'bfloat16'], ['--n_epochs', '0'],
    ['--eval_autocast', 'bfloat16'],
    ['--arch', 'timm:test_vit', '--input_size', '160', '--lora_rank', '2'],
], ids=' '.join)
def test_nothing_is_kept_where_results_could_change(flags, quick, capsys):
    opt = main.configuration.parse([*quick, *FROZEN, '--augmentation', 'none', *flags])
    parts.keep_features(opt, parts.build(opt))
    assert NOTE not in capsys.readouterr().out
