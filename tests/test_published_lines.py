"""The published runs of S2SD and NIR, in flags: they parse, build, and take a step."""
import itertools
import re

import pytest
import torch

import configuration
import criteria
import parts
from tests.helpers import with_blocks

S2SD = ('--n_epochs 150 --log_online --project Runs --seed 0 --gpu 0 --bs 112 --loss s2sd --loss_s2sd_T 1 '
        '--loss_s2sd_w 50 --loss_s2sd_target_dims 512 1024 1536 2048 --loss_s2sd_feat_distill '
        '--loss_s2sd_feat_distill_delay 1000')
S2SD_LOSSES = {
    'cub200': 'multisimilarity --loss_s2sd_target multisimilarity --loss_s2sd_feat_w 50 --loss_s2sd_pool_aggr',
    'cars196': 'multisimilarity --loss_s2sd_target multisimilarity --loss_s2sd_feat_w 50 --loss_s2sd_pool_aggr',
    'online_products': 'margin --loss_s2sd_target margin --batch_mining distance --loss_s2sd_feat_w 5',
}
NETWORKS = [('resnet50_frozen_normalize', 128), ('resnet50_frozen_normalize', 512), ('bninception_normalize', 512),
            ('bninception_normalize', 512)]                     # the latter two were published as two settings
NIR = ('--log_online --seed 0 --no_train_metrics --project NIR --gpu 0 --n_epochs 100 --tau 100 --gamma 0.1 --bs 90')
POOLS = [(f'resnet50_frozen_normalize{pool}', dim) for dim in (128, 512) for pool in ('', '_double')]
LINES = [f'--source data {S2SD} --dataset {dataset} --arch {arch} --embed_dim {dim} --loss_s2sd_source {losses}'
         for (dataset, losses), (arch, dim) in itertools.product(S2SD_LOSSES.items(), NETWORKS)]
LINES += [f'--source_path data {NIR} --dataset {dataset} --arch resnet50_frozen_normalize --embed_dim 128 --loss oproxy'
          for dataset in ('cub200', 'cars196')]
LINES += [f'--source_path data {NIR} --dataset {dataset} --arch {arch} --embed_dim {dim} --loss nir --warmup 1 '
          f'--loss_nir_w_align {weight}' for (dataset, weight), (arch, dim) in itertools.product(
              {'cub200': .0075, 'cars196': .01}.items(), POOLS)]


def test_there_are_as_many_as_were_published():
    """But for four lines of NIR with flags that its own parser refuses."""
    assert len([line for line in LINES if 's2sd' in line]) == 12 and len(LINES) == 12 + 14 - 4


@pytest.mark.parametrize('line', LINES)
def test_they_parse(line):
    assert configuration.parse(line.split()).loss in line


# of those that differ in the data set and in numbers only, one
@pytest.mark.parametrize('line', {re.sub(r'cub200|cars196|[\d.]', '', line): line for line in LINES}.values())
def test_they_build_and_take_a_step(line, patterns, monkeypatch):
    """ResNet-50 with one block of each stage: the widths that the flags are about are those of the whole network."""
    with_blocks(monkeypatch, [1, 1, 1, 1])
    if 'bninception' in line:
        pytest.importorskip('pretrainedmodels')
    small = ['--dataset', 'folder', '--source_path', str(patterns), '--not_pretrained', '--device', 'cpu', '--bs', '8',
             '--samples_per_class', '2', *(['--input_size', '64'] if 'resnet50' in line else [])]
    opt = configuration.parse([*line.split(), *small])
    built = parts.build(opt)
    before = [parameter.detach().clone() for group in built.optimizer.param_groups for parameter in group['params']]
    built.model.start_epoch(opt.warmup + 1)
    n = 8 if 'resnet50' in line else 4                           # the other network needs images of 224 pixels
    images, labels = torch.rand(n, 3, built.model.input_size, built.model.input_size), torch.arange(n) // 2
    embeddings, features, *maps = built.model(images, 'feature_maps' in criteria.inputs(built.criterion))
    assert len(maps) == opt.loss_s2sd_pool_aggr * (opt.loss == 's2sd')
    loss = built.criterion(batch=embeddings, labels=labels, batch_features=features, f_embed=built.model.f_embed,
                           step=1, **dict(zip(['feature_maps'], maps, strict=False)))
    loss.backward()
    built.optimizer.step()
    built.schedule.at(1)
    assert not configuration.unread(opt, trained=True, evaluated=False)
    after = [parameter for group in built.optimizer.param_groups for parameter in group['params']]
    moved = [not one.equal(other) for one, other in zip(before, after, strict=True)]
    assert loss.isfinite() and sum(moved) > .95 * len(moved) and all(parameter.isfinite().all() for parameter in after)
