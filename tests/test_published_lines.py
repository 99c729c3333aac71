"""Published runs of S2SD and NIR, in flags. The steps of both losses are those of test_papers.py."""
import pytest

import configuration

S2SD = ('--source data --n_epochs 150 --log_online --project Runs --seed 0 --gpu 0 --bs 112 --loss s2sd '
        '--loss_s2sd_T 1 --loss_s2sd_w 50 --loss_s2sd_target_dims 512 1024 1536 2048 --loss_s2sd_feat_distill '
        '--loss_s2sd_feat_distill_delay 1000 ')
NIR = ('--source_path data --log_online --seed 0 --no_train_metrics --project NIR --gpu 0 --n_epochs 100 --tau 100 '
       '--gamma 0.1 --bs 90 ')


@pytest.mark.parametrize('line, expected', [
    (f'{S2SD}--dataset cub200 --arch resnet50_frozen_normalize --embed_dim 128 --loss_s2sd_source multisimilarity '
     '--loss_s2sd_target multisimilarity --loss_s2sd_feat_w 50 --loss_s2sd_pool_aggr',
     {'source_path': 'data', 'loss_s2sd_target_dims': [512, 1024, 1536, 2048], 'loss_s2sd_pool_aggr': True}),
    (f'{S2SD}--dataset online_products --arch bninception_normalize --embed_dim 512 --loss_s2sd_source margin '
     '--loss_s2sd_target margin --batch_mining distance --loss_s2sd_feat_w 5',
     {'loss_s2sd_source': 'margin', 'loss_s2sd_feat_distill': True, 'loss_s2sd_feat_distill_delay': 1000}),
    (f'{NIR}--dataset cub200 --arch resnet50_frozen_normalize --embed_dim 128 --loss oproxy',
     {'source_path': 'data', 'tau': [100], 'gamma': .1, 'no_train_metrics': True}),
    (f'{NIR}--dataset cub200 --arch resnet50_frozen_normalize --embed_dim 128 --loss nir --warmup 1 '
     '--loss_nir_w_align .0075', {'warmup': 1, 'loss_nir_w_align': .0075}),
    (f'{NIR}--dataset cars196 --arch resnet50_frozen_normalize_double --embed_dim 512 --loss nir --warmup 1 '
     '--loss_nir_w_align .01', {'arch': 'resnet50_frozen_normalize_double', 'embed_dim': 512})])
def test_a_published_line_parses(line, expected):
    assert vars(configuration.parse(line.split())).items() >= expected.items()
