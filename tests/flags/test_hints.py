"""flags/hints.py: command lines as users of other programs type them, and the table itself."""
import re
import shlex

import pytest

import Evaluate_Ensemble
import parameters
from flags import command_line, hints
from utilities.errors import UserError

# the flag that is refused, and what its line says
MVR = {'batch_size': '--bs', 'mvr_reg': '--loss_dr_triplet_gamma', 'margin': '--loss_triplet_margin',
       'tnsrbrd_dir': '--save_path', 'model_save_dir': '--save_path', 'exp_name': '--group', 'wdecay': '--decay',
       'images_per_class': '--samples_per_class', 'ms_thresh': '--loss_dr_multisimilarity_thresh'}
BENCHMARKER = {'experiment_name': '--group', 'loss_funcs~OVERRIDE~': '--loss pml:NAME', 'optimizers': '--embed_optim',
               'mining_funcs~OVERRIDE~': '--batch_mining pml:NAME', 'config_general': '--config FILE',
               'bayesian_optimization_n_iter': 'Hyperparameter_Search.py', 'num_epochs_train': '--n_epochs',
               'lr~LOG_BAYESIAN~': 'Hyperparameter_Search.py', 'root_experiment_folder': '--save_path',
               'dataset_root': '--source_path', 'bayes_opt_iters': 'Hyperparameter_Search.py',
               'split_manager~SWAP~1': '--split_scheme'}
OTHERS = {'epochs': '--n_epochs', 'learning_rate': '--lr', 'num_workers': '--kernels', 'weight-decay': '--decay',
          'sz-batch': '--bs', 'nb-epochs': '--n_epochs', 'embedding_size': '--embed_dim', 'IPC': '--samples_per_class'}


@pytest.mark.parametrize('line, hints', [
    ('--patience 25 --batch_size 128 --mvr_reg 0.49 --margin 0.27 --loss triplet --tnsrbrd_dir ./runs/exp '
     '--model_save_dir ./MVR_Triplet/exp --exp_name mvr_triplet --wdecay 0.0 --images_per_class 16 --lr 1e-5 '
     '--ms_thresh 0.6', MVR),
    ("--experiment_name test1 --root_experiment_folder ~/runs --dataset_root=~/data --loss_funcs~OVERRIDE~ "
     "'{metric_loss: {MultiSimilarityLoss: {alpha~BAYESIAN~: [0.01, 50]}}}' --mining_funcs~OVERRIDE~ {} "
     "--config_general default daml "
     "--optimizers '{trunk_optimizer~OVERRIDE~: {RMSprop: {lr: 0.01}}}' --bayesian_optimization_n_iter 50 "
     '--num_epochs_train 100 --lr~LOG_BAYESIAN~ [0.0001,0.01] --bayes_opt_iters 50 --split_manager~SWAP~1 {A: {}}',
     BENCHMARKER),
    ('--epochs 60 --learning_rate 1e-4 --num_workers 8 --weight-decay 1e-4 --sz-batch 180 --nb-epochs 60 '
     '--embedding_size 512 --IPC 4', OTHERS),
])
def test_each_flag_of_another_program_is_answered_by_the_one_here(line, hints):
    with pytest.raises(UserError) as refused:
        parameters.build().parse_args(shlex.split(line))
    said = dict(answer.split(': unknown flag; ') for answer in str(refused.value).splitlines())
    assert said.keys() == {f'--{flag}' for flag in hints}
    assert all(hint in said[f'--{flag}'] for flag, hint in hints.items())


def test_a_config_file_gets_the_same_answers(tmp_path):
    (tmp_path / 'flags.yaml').write_text('batch_size: 32\nlr: 0.1\nepochs: 3\n')
    both = r'flags.yaml: batch_size: unknown flag; here --bs\n.*flags.yaml: epochs: unknown flag; here --n_epochs$'
    with pytest.raises(UserError, match=both):
        command_line.read_config(parameters.build(), tmp_path / 'flags.yaml')


def test_the_table_names_flags_that_there_are_for_flags_that_there_are_not():
    known, names = {*command_line.known_flags(parameters.build())}, ' '.join(hints.HERE.values()).split()
    of_ensembles = {*command_line.known_flags(Evaluate_Ensemble.build())}
    assert len(names) == len({*names}) and known & {*names} == {'splits_to_eval'} and not of_ensembles & {*names}
    for here in hints.HERE:
        assert {*re.findall(r'--(\w+)', here)} <= known | of_ensembles, here


def test_the_split_that_ensembles_are_evaluated_on_is_said():
    with pytest.raises(UserError, match='--splits_to_eval: unknown flag; here the test classes are always evaluated'):
        Evaluate_Ensemble.build().parse_args(['runs', '--splits_to_eval', 'test'])


def test_a_program_without_the_flag_does_not_name_it():
    assert hints.unknown('batch_size', ['gpus']) == ''
