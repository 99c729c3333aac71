"""The published runs of S2SD and NIR, in flags: they parse. The steps of both losses are those of test_papers.py."""
import itertools

import pytest

import configuration

S2SD = ('--n_epochs 150 --log_online --project Runs --seed 0 --gpu 0 --bs 112 --loss s2sd --loss_s2sd_T 1 '
        '--loss_s2sd_w 50 --loss_s2sd_target_dims 512 1024 1536 2048 --loss_s2sd_feat_distill '
        '--loss_s2sd_feat_distill_delay 1000')
S2SD_LOSSES = {
    'cub200': 'multisimilarity --loss_s2sd_target multisimilarity --loss_s2sd_feat_w 50 --loss_s2sd_pool_aggr',
    'cars196': 'multisimilarity --loss_s2sd_target multisimilarity --loss_s2sd_feat_w 50 --loss_s2sd_pool_aggr',
    'online_products': 'margin --loss_s2sd_target margin --batch_mining distance --loss_s2sd_feat_w 5',
}
NETWORKS = [('resnet50_frozen_normalize', 128), ('resnet50_frozen_normalize', 512), ('bninception_normalize', 512)]
NIR = ('--log_online --seed 0 --no_train_metrics --project NIR --gpu 0 --n_epochs 100 --tau 100 --gamma 0.1 --bs 90')
POOLS = [(f'resnet50_frozen_normalize{pool}', dim) for dim in (128, 512) for pool in ('', '_double')]
LINES = [f'--source data {S2SD} --dataset {dataset} --arch {arch} --embed_dim {dim} --loss_s2sd_source {losses}'
         for (dataset, losses), (arch, dim) in itertools.product(S2SD_LOSSES.items(), NETWORKS)]
LINES += [f'--source_path data {NIR} --dataset {dataset} --arch resnet50_frozen_normalize --embed_dim 128 --loss oproxy'
          for dataset in ('cub200', 'cars196')]
LINES += [f'--source_path data {NIR} --dataset {dataset} --arch {arch} --embed_dim {dim} --loss nir --warmup 1 '
          f'--loss_nir_w_align {weight}' for (dataset, weight), (arch, dim) in itertools.product(
              {'cub200': .0075, 'cars196': .01}.items(), POOLS)]


@pytest.mark.parametrize('line', LINES)
def test_they_parse(line):
    assert configuration.parse(line.split()).loss in line
