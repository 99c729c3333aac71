"""The flags: the public code's names and defaults, config files, and sentences for what cannot be."""
import argparse
import math
import re
import shlex

import pytest
import yaml

import configuration
import Evaluate_Ensemble
import Hyperparameter_Search
import Launch_Runs
import parameters
import Result_Evaluations
import Retrieve_Images
from architectures import embedding_layer, pooling
from datasets import splits
from flags import command_line, help_texts
from utilities import errors
from utilities.errors import UserError

# Name, type and default as users of the public code of Roth et al. know them.
PUBLIC = """
dataset=cub200 use_tv_split=False tv_split_by_samples=False tv_split_perc=0.8 augmentation=base lr=1e-05 fc_lr=-1
decay=0.0004 n_epochs=150 kernels=6 bs=112 seed=1 scheduler=step gamma=0.3 tau=[1000] optim=adam loss=margin
batch_mining=distance embed_dim=128 not_pretrained=False arch=resnet50_frozen_normalize no_train_metrics=False
evaluate_on_gpu=False storage_metrics=['e_recall@1'] evaltypes=['discriminative'] gpu=[0] savename=group_plus_seed
source_path=../../Datasets save_path=Training_Results data_sampler=class_random samples_per_class=2
data_batchmatch_bigbs=512 data_batchmatch_ncomps=10 data_storage_no_update=False data_d2_coreset_lambda=1
data_gc_coreset_lim=1e-09 data_sampler_lowproj_dim=-1 data_sim_measure=euclidean data_gc_softened=False
data_idx_full_prec=False data_mb_mom=-1 data_mb_lr=1 miner_distance_lower_cutoff=0.5 miner_distance_upper_cutoff=1.4
miner_rho_distance_lower_cutoff=0.5 miner_rho_distance_upper_cutoff=1.4 miner_rho_distance_cp=0.2
loss_contrastive_pos_margin=0 loss_contrastive_neg_margin=1 loss_triplet_margin=0.2 loss_margin_margin=0.2
loss_margin_beta_lr=0.0005 loss_margin_beta=1.2 loss_margin_nu=0 loss_margin_beta_constant=False
loss_proxynca_lrmulti=50 loss_npair_l2=0.005 loss_angular_alpha=45 loss_angular_npair_ang_weight=2
loss_angular_npair_l2=0.005 loss_multisimilarity_pos_weight=2 loss_multisimilarity_neg_weight=40
loss_multisimilarity_margin=0.1 loss_multisimilarity_thresh=0.5 loss_lifted_neg_margin=1 loss_lifted_l2=0.005
loss_quadruplet_margin_alpha_1=0.2 loss_quadruplet_margin_alpha_2=0.2 loss_softtriplet_n_centroids=2
loss_softtriplet_margin_delta=0.01 loss_softtriplet_gamma=0.1 loss_softtriplet_lambda=8 loss_softtriplet_reg_weight=0.2
loss_softtriplet_lrmulti=1 loss_softmax_lr=1e-05 loss_softmax_temperature=0.05 loss_histogram_nbins=65
loss_snr_margin=0.2 loss_snr_reg_lambda=0.005 loss_arcface_lr=0.0005 loss_arcface_angular_margin=0.5
loss_arcface_feature_scale=16
log_online=False wandb_key=None project=Sample_Project group=Sample_Group
"""
PUBLIC_METRICS = """e_recall@1 e_recall@2 e_recall@4 nmi f1 mAP_1000 mAP_lim mAP_c dists@intra dists@inter
dists@intra_over_inter rho_spectrum@0 rho_spectrum@-1 rho_spectrum@1 rho_spectrum@2 rho_spectrum@10"""


def parse(text):
    return configuration.parse(shlex.split(text))


def test_every_public_flag_has_its_name_and_default():
    opt = vars(parse(''))
    for word in PUBLIC.split():
        name, _, default = word.partition('=')
        assert str(opt[name]) == default or math.isclose(float(opt[name]), float(default)), name
    assert opt['evaluation_metrics'] == PUBLIC_METRICS.split() + ['map_at_r', 'precision_at_1', 'r_precision']


def test_the_public_readmes_sample_command():
    opt = parse('--loss margin --batch_mining distance --log_online --project DML_Project --group Margin_with_Distance '
                '--seed 0 --gpu 0 --bs 112 --data_sampler class_random --samples_per_class 2 '
                '--arch resnet50_frozen_normalize --source datapath --n_epochs 150 --lr 0.00001 --embed_dim 128 '
                '--evaluate_on_gpu')
    assert opt.source_path == 'datapath' and opt.log_online and opt.evaluate_on_gpu and opt.lr == 1e-5


def test_the_help_names_every_flag_and_registry_entry(capsys):
    from architectures import ARCHITECTURES
    from batch_mining import BATCHMINERS
    from criteria import CRITERIA
    from datasampler import SAMPLERS
    from datasets import DATASETS
    from evaluation import METRICS
    with pytest.raises(SystemExit) as stopped:
        parse('--help all')
    text = capsys.readouterr().out
    assert stopped.value.code == 0 and all(len(line) <= 120 for line in text.splitlines())
    for flag in command_line.known_flags(parameters.build()):
        assert f'--{flag}' in text, flag
    for registry in (CRITERIA, BATCHMINERS, SAMPLERS, DATASETS, ARCHITECTURES, METRICS):
        assert all(name in text for name in registry)


def help_on(*words, build=parameters.build):
    return help_texts.page(build(), words)


def test_the_first_help_fits_on_two_screens():
    text = help_on()
    shown = re.findall(r'^  (--\w+)', text, re.MULTILINE)
    assert len(text.splitlines()) <= 90 and len(shown) == 20 and {'--loss', '--dataset', '--seed'} <= {*shown}
    assert all(f'  {group} ' in text for group in ('data', 'network', 'training', 'batch mining', 'losses', 'machine'))


def test_the_help_on_a_method_has_its_flags_and_its_paper():
    text = help_on('margin')
    assert len(text.splitlines()) <= 30 and 'Wu et al., Sampling Matters' in ' '.join(text.split())
    explained, others = text.split('other flags with "margin"')
    assert '--loss_margin_nu FLOAT' in explained and '--loss_triplet_margin' in others
    assert '--loss_oproxy_pos_alpha' in help_on('nir') and '--data_mb_mom' in help_on('d2_coreset')
    assert '--miner_distance_lower_cutoff' in help_on('random_distance')
    assert '--data_mb_mom' not in help_on('class_random')


def test_the_help_on_groups_words_and_facts():
    text = help_on('batch', 'mining').split('other flags')[0]
    assert '--loss_' not in text and '--miner_parametric_mode' in text
    text = help_on('resume', 'xbm')
    assert '--auto_resume' in text and '--xbm_start' in text and '--lr ' not in text
    assert '--n_epochs,' in help_on('resumable') and '--eval_normalize' in help_on('resumable')
    assert '--lr,' not in help_on('resumable') and '--bs,' not in help_on('resumable')
    assert '--kernels INT' in help_on('machine') and '--bs ' not in help_on('machine')


def test_an_unknown_word_is_refused_with_the_nearest_names(capsys):
    assert errors.exit_code('main.py', lambda: parse('--help marginn')) == 2
    said = capsys.readouterr().err
    assert '--help marginn: no flag, method or group matches; did you mean margin' in said


def test_flags_for_old_scripts_are_shown_by_help_all_only():
    obsolete = [flag for flag, is_set in parameters.flags_with('obsolete').items() if is_set]
    assert {'evaltypes', 'miner_distance_upper_cutoff'} <= {*obsolete}
    everything, some = help_on('all'), help_on('losses', 'distance', 'evaluation', 'cutoff')
    with pytest.raises(UserError, match='no flag, method or group matches'):
        help_on('evaltypes')
    assert all(f'--{flag} ' in everything and f'--{flag}' not in some for flag in obsolete)
    with pytest.raises(UserError, match='--knn_approx: unknown flag'):
        parse('--knn_approx')


def parsers():
    """{script and command: parser} of all scripts."""
    found = {'main.py': parameters.build()}
    for script in (Launch_Runs, Result_Evaluations, Hyperparameter_Search, Evaluate_Ensemble, Retrieve_Images):
        parser = found[script.__name__] = script.build()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                found |= {command.prog: command for command in action.choices.values()}
    return found


def test_help_texts_have_at_most_20_words():
    for script, parser in parsers().items():
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                continue
            texts = [action.help, *(action.choices.values() if isinstance(action.choices, dict) else ())]
            assert all(text and len(text.split()) <= 20 for text in texts), (script, action.dest)


def test_help_on_a_word_works_for_every_script():
    for script, parser in parsers().items():
        assert '--help' in help_texts.page(parser, ['help']), script
        with pytest.raises(UserError, match='--help qqqq: no flag, method or group matches'):
            help_texts.page(parser, ['qqqq'])
    assert '--partition' in help_on('slurm', build=Launch_Runs.build)
    assert 'Retrieve_Images.py query' in help_on('picture', build=Retrieve_Images.build)


def test_choices_with_meanings_are_those_of_the_program():
    choices = {action.dest: action.choices for action in parameters.build()._actions}
    assert [*choices['pool']] == [*pooling.OF_MAPS, *pooling.OF_TOKENS]
    assert [*choices['split_scheme']] == [*splits.SCHEMES]
    assert [*choices['embed_norm']] == ['none', *embedding_layer.NORMS]
    assert [*choices['embed_init']] == ['default', *embedding_layer.INITS, 'pca']


@pytest.mark.parametrize('command, sentence', [
    ('--los margin', r'--los: unknown flag; did you mean loss\?'),                       # no abbreviations
    ('--bs 0', '--bs: expected a whole number of at least 1, not 0'),
    ('--lr nan', '--lr: expected a number of at least 0, not nan'),
    ('--tv_split_perc 1.2', 'expected a number above 0 and at most 1, not 1.2'),
    ('--color_jitter 0.4 0.4 0.4 0.6', '--color_jitter 0.4 0.4 0.4 0.6: the last number, of the hue, must not exceed'),
    ('--randaugment 2 31', '--randaugment 2 31: the second number, the magnitude, must not exceed 30'),
    ('--amp half', "--amp: invalid choice: 'half'"),
    ('--optim lion', '--optim: lion is unknown; choose from adadelta, '),
    ('--loss_optim LBFGS', '--loss_optim: LBFGS of torch.optim does not work here: it computes the loss several times'),
    ('--embed_optim sparseadam', '--embed_optim: sparseadam of torch.optim does not work here: it takes sparse'),
    ("--optim sgd --optim_args '{nestrov: true}'", "argument 'nestrov'.*; the .* of torch.optim.SGD"),
    ("--optim sgd --optim_args '{momentum: 0.5}'", '--optim_args .*: --lr, --decay, --momentum .* eps$'),
    ("--optim nadam --optim_args '{momentum_decay: a}'", "--optim_args {'momentum_decay': 'a'}: '<=' not supported"),
    ("--loss_optim_args '{a: 1}' '{b: 2}'", '--loss_optim_args: expected one mapping, not 2'),
    ('--use_tv_split maybe', "--use_tv_split: expected true or false, not 'maybe'"),
    ('--use_tv_split --tv_split_perc 1', '--tv_split_perc 1 leaves nothing to validate on'),
    ('--evaluation_metrics e_recal@1', '--evaluation_metrics e_recal@1: unknown; choose from .*e_recall'),
    ('--storage_metrics map_at_k', '--storage_metrics map_at_k: not among the --evaluation_metrics'),
    ('--storage_metrics dists@intra', '--storage_metrics dists@intra: its value does not say which network is better'),
    ('--csv x.csv', '--csv goes with --dataset folder, not with cub200'),
    ('--splits_to_eval train --no_train_metrics', 'exclude each other'),
    ('--fold 1', '--fold 1 goes with --split_scheme class_folds, mlrc, closed_set'),
    ('--split_scheme half --test_size 1', 'leaves nothing to train on'),
    ('--split_scheme mlrc --fold 4', '--fold 4: with --n_folds 4, folds are numbered from 0 to 3'),
    ('--split_scheme mlrc --fold 2 --n_training_folds 2', '--fold 2: with --n_training_folds 2, folds are .* 0 to 1'),
    ('--split_scheme class_folds --n_training_folds 5', '--n_training_folds 5: there are only --n_folds 4'),
    ('--split_scheme mlrc --use_tv_split', '--use_tv_split: --split_scheme mlrc validates on --fold 0'),
    ('--group a/b', '--group a/b: it names a folder and must not hold a slash'),
    ('--savename ..', '--savename ..: it names a folder'),
    (f'--savename {"x" * 300}', r'--savename x{40}\.\.\.: it names a folder and has 300 bytes; at most 200 fit'),
    ('--lr 1_0', '--lr: expected a number of at least 0, not 1_0'),
    ('--bs １２', '--bs: expected a whole number of at least 1, not １２'),
    ("--group 'a\nb'", r"--group 'a\\nb': it names a folder and must not hold line breaks"),
    ('--group a\udcffb', r"'a\\udcffb': a flag cannot contain a NUL byte or bytes that are not UTF-8"),
    ("--source_path 'a\0b'", 'a flag cannot contain a NUL byte'),
    (f'--seed {"1" * 400}', r'--seed: .* of at most 19 digits, not 1{57}\.\.\.$'),
    (f'--embed_dim {"1" * 5000}', r'--embed_dim: expected a whole number of at least 1, not 1{57}\.\.\.$'),
    ('--resume a --evaluate b', 'give one of them'),
    ('--evaluation_metrics e_recall@1 rho_spectrum@0 c_rho_spectrum@0',
     '--evaluation_metrics rho_spectrum@0 c_rho_spectrum@0: spectrum.csv holds one spectrum of each split'),
    ('--resume nowhere', 'nowhere: not a run folder: nowhere/config.yaml: No such file'),
    ('--config nowhere.yaml', '--config nowhere.yaml: No such file'),
    ('--miner_parametric_support_lim 1', '--miner_parametric_support_lim: expected 2 arguments'),
])
def test_what_cannot_be_is_refused_in_one_or_two_lines(command, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        parse(command)
    assert len(str(caught.value).splitlines()) <= 2


def test_config_files_merge_left_to_right_and_the_command_line_wins(tmp_path):
    (tmp_path / 'a.yaml').write_text('lr: 1e-3\nbs: 20\nuse_tv_split: true\ntau: [3, 5]\nsource: data\nfc_lr: -1\n')
    (tmp_path / 'b.yaml').write_text('bs: 30\nloss_triplet_margin: 0.5\nnot_pretrained: false\nweights: null\n')
    files = f'--config {tmp_path / "a.yaml"} {tmp_path / "b.yaml"}'
    opt = parse(f'{files} --loss_triplet_margin 0.7 --use_tv_split false')
    assert (opt.lr, opt.bs, opt.tau, opt.source_path) == (1e-3, 30, [3, 5], 'data')
    assert opt.loss_triplet_margin == .7 and not opt.use_tv_split and parse(files).use_tv_split
    (tmp_path / 'empty.yaml').write_text('')
    assert parse(f'--config {tmp_path / "empty.yaml"}').bs == 112


@pytest.mark.parametrize('content, sentence', [
    ('loss_triplet_margn: 1', r'c.yaml: loss_triplet_margn: unknown flag; did you mean loss_triplet_margin\?'),
    ('bs: many', 'c.yaml: --bs: expected a whole number of at least 1, not many'),
    ('resume: x', 'c.yaml: resume: unknown flag'),
    ('config: x.yaml', 'c.yaml: config: unknown flag in a file; give it on the command line$'),
    ('flags: {bs: 8}\nrun_id: 1f', r'c.yaml: the file of a run folder; give --reproduce \S+$'),
    ('- 1', 'c.yaml: expected lines of the form "flag: value"'),
    ('a: [', 'c.yaml: not a YAML file'),
    ('a: !!python/object/apply:os.getcwd []', 'c.yaml: not a YAML file'),
    ('1: 2', 'c.yaml: 1: unknown flag'),
    ('lr: 1e-4\nlr: 2e-4', 'c.yaml: not a YAML file of flags: line 2: the key lr occurs twice'),
    (f'seed: {"1" * 5000}', 'c.yaml: not a YAML file of flags: .*5000 digits'),
    ('group: "a\\0b"', 'c.yaml: .*a flag cannot contain a NUL byte'),
    ('evaluation_metrics: [--n_epochs, "3"]', r'--evaluation_metrics  --n_epochs: unknown'),
])
def test_a_bad_config_file_is_named_with_the_key_and_the_nearest_flag(content, sentence, tmp_path):
    (tmp_path / 'c.yaml').write_text(content)
    with pytest.raises(UserError, match=sentence):
        parse(f'--config {tmp_path / "c.yaml"}')


def test_settings_survive_the_way_through_a_file(tmp_path):
    opt = parse('--lr 3e-7 --tau 1 2 --use_tv_split --embed_layers 20 10 --fc_lr -1 --input_mean 0.1 --wandb_key key '
                '--evaluation_metrics rho_spectrum@-1 e_recall@1 --group "two words" --daml --daml_layers')
    settings = configuration.recorded_settings(opt)
    (tmp_path / 'c.yaml').write_text(yaml.safe_dump(settings))
    again = configuration.recorded_settings(parse(f'--config {tmp_path / "c.yaml"}'))
    assert settings == again and 'wandb_key' not in settings and 'resume' not in settings
    assert again['daml_layers'] == configuration.parse([], settings).daml_layers == [] != parse('').daml_layers


def test_what_yaml_makes_of_values_that_are_texts_or_begin_with_a_dash(tmp_path):
    (tmp_path / 'c.yaml').write_text('loss_pml_args: [{margin: 2024-01-01}]\ngroup: 2024-01-01\n'
                                     'input_mean: [-1.0e-5, -2]\nlr: 1e-3\n')
    opt = parse(f'--config {tmp_path / "c.yaml"} --loss pml:X')
    assert opt.group == '2024-01-01' and opt.input_mean == [-1e-5, -2] and opt.lr == 1e-3
    assert opt.loss_pml_args == [{'margin': '2024-01-01'}]
    with pytest.raises(UserError, match='expected a YAML mapping'):
        (tmp_path / 'c.yaml').write_text('loss_pml_args: [--lr=3]')
        parse(f'--config {tmp_path / "c.yaml"}')


# Arguments of the losses of libraries

@pytest.mark.parametrize('files, command, expected', [
    (['{loss: "pml:X", loss_pml_args: {alpha: 32, swap: true}}', 'loss_pml_args: [{margin: 0.1}]'], '',
     [{'alpha': 32, 'swap': True, 'margin': .1}]),
    (['{loss: "pml:X", loss_pml_args: {alpha: 32}}'], '--loss_pml_args "{margin: 0.1, alpha: 8}"',
     [{'alpha': 8, 'margin': .1}]),
    (['loss_pml_args: {alpha: 32}', 'loss: "pml:X"'], '', [{'alpha': 32}]),                # the loss is named later
    (['{loss: "pml:X", loss_pml_args: {alpha: 32}}'], '--loss_pml_args', []),
    (['{loss: "pml:X", loss_pml_args: {alpha: 32}}', 'loss_pml_args: []'], '--loss_pml_args "{a: 1}"', [{'a': 1}]),
    (['{loss: "pml:X", loss_pml_args: {alpha: 32}}'], '--loss pml:Y', []),          # another loss, other arguments
    (['{loss: "pml:X", loss_pml_args: {alpha: 32}}'], '--loss pml:X --loss_pml_args "{a: 1}"', [{'alpha': 32, 'a': 1}]),
    (['{loss: "pml:X+pml:Y", loss_pml_args: [{a: 1}, {b: 2}]}'], '--loss_pml_args "{c: 3}"',
     [{'a': 1, 'c': 3}, {'b': 2, 'c': 3}]),
    (['{loss: "pml:X+pml:Y", loss_pml_args: [{a: 1}]}'], '--loss_pml_args "{b: 1}" "{b: 2}"',
     [{'a': 1, 'b': 1}, {'a': 1, 'b': 2}]),
    (['{loss: "pml:X", loss_pml_args: {d: {LpDistance: {power: 2}}}}'], '--loss_pml_args "{d: {CosineSimilarity: {}}}"',
     [{'d': {'CosineSimilarity': {}}}]),
])
def test_arguments_of_a_librarys_loss_are_merged_by_key(files, command, expected, tmp_path):
    for number, text in enumerate(files):
        (tmp_path / f'{number}.yaml').write_text(text)
    configs = ' '.join(f'{tmp_path / str(number)}.yaml' for number in range(len(files)))
    opt = parse(f'{"--config " * bool(files)}{configs} {command}')
    assert opt.loss_pml_args == expected
    again = configuration.parse([], configuration.recorded_settings(opt))                      # as --resume reads them
    assert again.loss_pml_args == expected
