"""Notes on given flags that nothing reads."""
import shlex

import pytest

# what a run of an epoch on small images needs, and the flags after it: those that are named, and those that are not
RUNS = [
    ('--loss softmax --batch_mining semihard', '--loss_triplet_margin 0.3 --miner_semihard_margin 0.1',
     '--loss_softmax_lr 0.1', ['--batch_mining semihard']),
    ('--loss triplet+softmax --batch_mining semihard+none', '--loss_margin_beta 0.6 --tv_split_perc 0.5',
     '--loss_triplet_margin 0.3 --loss_softmax_lr 0.1 --miner_semihard_margin 0.1 --loss_weights 1 2 --loss_decay 0.1 '
     '--loss_optim sgd --momentum 0.5'),
    ('--loss triplet --scheduler none --optim sgd', '--tau 3 5 --xbm_start 3 --loss_optim adam --loss_decay 0.1 '
     '--adam_eps 1e-6 --gamma 0.5 --embed_norm_affine', '--momentum 0.5'),
    ('--loss softmax --scheduler cosine --embed_optim sgd', '--gamma 0.5 --lr_warmup_unit steps',
     "--loss_softmax_lr 0.1 --lr_floor 0.1 --cosine_delay 1 --loss_decay 0.1 --embed_optim_args '{momentum: 0.5}'"),
    ('--data_sampler image_random',
     '--samples_per_class 4 --data_cover_epoch --momentum 0.5 --loss_softmax_lr 0.1', ''),
    ('--data_sampler fid_batchmatch', '--data_gc_softened --data_mb_lr 2', '--data_batchmatch_ncomps 3'),
    ('--loss nir --batch_mining none --loss_nir_nf_fc_width 16', '--loss_oproxy_lrmulti 3',
     '--loss_oproxy_pos_alpha 16 --loss_oproxy_neg_delta 0.1'),
    ('--augmentation characters', '--eval_resize 288 --crop_scale 0.2 1', '--interpolation bicubic'),
    ('--batch_mining parametric', '--miner_parametric_init hards --miner_distance_upper_cutoff 2',
     '--miner_parametric_n_support 9 --miner_parametric_mode hards'),
    ('--loss pml:ContrastiveLoss --batch_mining pml:MultiSimilarityMiner', '--loss_torch_args {a:\\ 1}',
     "--loss_pml_args '{pos_margin: 0.1}' --miner_pml_args '{epsilon: 0.2}'"),
    ('--loss triplet', "--loss_pml_args '{pos_margin: 0.1}' --miner_pml_args '{epsilon: 0.2}' --loss_pml_lr 0.1", ''),
    ('--loss margin', '--cascade_fractions 0.3 0.1 --daml_weight 2 --matryoshka_weights 1 2 --distill_w 3 '
     '--class_weights_beta 0.9', '--loss_margin_beta 0.6 --clip_grad 1'),
    ('--loss triplet --batch_mining all --daml', '', '--daml_weight 2 --loss_optim sgd'),
    ('--loss softmax --matryoshka 8 16', '--matryoshka_mine_prefixes', '--matryoshka_weights 1 2'),
    ('--loss ldam --loss_ldam_weights_beta 0', '--loss_ldam_weights_delay 2', '--loss_ldam_max_margin 0.4'),
    ('--loss s2sd --loss_s2sd_target_dims 8', '--loss_s2sd_feat_distill_delay 3 --loss_s2sd_feat_w 3', ''),
    ('--split_scheme class_folds --bs 8 --eval_ema', '--tv_split_by_samples',
     '--fold 1 --n_folds 3 --n_training_folds 2 --test_size 0.4 --test_start 0.2', ['--eval_ema True']),
    ('', '', '--pca 4 --eval_normalize --eval_bs 5 --bootstrap 10 --cluster_every 2 --eval_every 2 --patience 2 '
     '--use_tv_split --tv_split_perc 0.5 --skip_bad_images --views 2 --warmup 1 --lr_warmup 1 '
     '--lr_warmup_unit steps --ema 0.9 --layer_decay 0.9 --decay_exclude biases --kernels 0 --micro_bs 100'),
]


def flags_in(text):
    return {word.removeprefix('--') for word in shlex.split(text) if word.startswith('--')}


@pytest.mark.parametrize('base, idle, acting, more', [(*case, [])[:4] for case in RUNS])
def test_a_given_flag_that_nothing_reads_is_named_after_the_first_epoch(base, idle, acting, more, quick, run, capsys):
    if 'pml:' in base:
        pytest.importorskip('pytorch_metric_learning')
    few = ['--n_epochs', '1', '--iterations_per_epoch', '1', '--evaluation_metrics', 'e_recall@1']
    assert run(*quick, *few, *shlex.split(f'{base} {idle} {acting}')) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if 'without effect' in line]
    assert len(notes) == bool(idle or more)
    named = flags_in(notes[0].replace(', --', ' --').partition('run: ')[2]) if notes else set()
    assert named == flags_in(idle) | flags_in(' '.join(more))


def test_each_flag_is_named_once_and_of_the_evaluation_after_it(quick, run, tmp_path, capsys):
    """Not at a resume, where the data and the network are the run's, and its checkpoint has the weights."""
    idle = ['--loss_triplet_margin', '0.3', '--tv_split_perc', '0.5', '--eval_ema']
    quick = [*quick, '--iterations_per_epoch', '1', '--evaluation_metrics', 'e_recall@1', '--eval_every', '2']
    assert run(*quick, '--loss', 'margin', *idle, '--n_epochs', '2') == 0
    assert [line.partition('run: ')[2] for line in capsys.readouterr().err.splitlines()] == [
        '--tv_split_perc 0.5, --loss_triplet_margin 0.3', '--eval_ema True']
    assert run('--resume', tmp_path / 'runs' / 'folder' / 'quick_s1', '--n_epochs', '3', '--not_pretrained', *idle) == 0
    assert [line.partition('run: ')[2] for line in capsys.readouterr().err.splitlines()] == [
        '--loss_triplet_margin 0.3, --eval_ema True']
