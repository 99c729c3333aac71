"""The scripts of the study on photos: their runs and searches, what finished runs leave out, what questions ask for."""
import os
import shutil
import subprocess

import pytest
import yaml

import configuration
import Hyperparameter_Search
import parameters
from flags import command_line
from tests.helpers import ROOT
from tuning import ranges
from tuning.search import DEFAULTS


def lines(rows, script='Photos_Runs', **environment):
    done = subprocess.run([f'studies/{script}.sh', '--list'], cwd=ROOT, capture_output=True, text=True, check=True,
                          env=os.environ | {'DATA': 'photos', 'ROWS': str(rows)} | environment)
    return [line.split()[2:] for line in done.stdout.splitlines()], done.stderr


def name(line):
    return line[line.index('--group') + 1], int(line[line.index('--seed') + 1])


def test_lines_are_valid_and_differ(tmp_path):
    found, said = lines(tmp_path)
    assert said == ''
    assert len({name(line) for line in found}) == len(found)
    flags = [vars(configuration.parse(line)) for line in found]
    fixed = {'given', 'group', 'seed', 'source_path', 'loss', 'batch_mining', 'n_epochs', 'eval_every', 'embed_init'}
    differing = {flag for flag in flags[0] if len({str(one[flag]) for one in flags}) > 1}
    assert {flag for flag in differing if not flag.startswith(('loss_', 'miner_'))} <= fixed


def test_runs_with_rows_are_left_out(tmp_path):
    before, _ = lines(tmp_path, SETS='birds', SEEDS='2 3')
    (tmp_path / 'photos.csv').write_text('dataset,group,seed,epoch\n'
                                         'folder,Photos_birds_MS,3,15\nfolder,Photos_birds_Margin_Longer,2,45\n')
    after, said = lines(tmp_path, SETS='birds', SEEDS='2 3')
    missing = {name(line) for line in before} - {name(line) for line in after}
    assert missing == {('Photos_birds_MS', 3), ('Photos_birds_Margin_Longer', 2)}
    assert said.startswith('2 runs have a row')


def test_frozen_runs_of_every_loss_with_and_without_the_setting_of_its_search(tmp_path):
    code = tmp_path / 'code'
    shutil.copytree(ROOT / 'studies', code / 'studies')
    shutil.copytree(ROOT / 'run_scripts', code / 'run_scripts')
    (code / 'studies' / 'settings').mkdir(exist_ok=True)
    (code / 'studies' / 'settings' / 'frozen.txt').write_text('cars MS --loss_multisimilarity_thresh=0.7 --lr=0.0003\n')
    commands = {}
    for script in ('Frozen_Runs', 'Frozen_Searches'):
        done = subprocess.run([code / 'studies' / f'{script}.sh', '--list'], capture_output=True, text=True, check=True,
                              env=os.environ | {'DATA': 'photos', 'ROWS': str(tmp_path), 'SEEDS': '3'})
        commands[script] = [line.split()[2:] for line in done.stdout.splitlines()]
    groups = {name(line)[0]: line for line in commands['Frozen_Runs']}
    settings = {data: {group.removeprefix(f'Frozen_{data}_') for group in groups if f'_{data}_' in group}
                for data in ('birds', 'cars')}
    registered = yaml.safe_load((ROOT / 'studies' / 'photos.yaml').read_text())
    six = {f'{loss}_512' for loss in ('Contrastive', 'Triplet', 'Margin', 'MS', 'ProxyAnchor', 'ArcFace')}
    assert settings['birds'] == {*registered['losses'], *six}
    assert settings['cars'] == {*registered['losses'], *six, 'MS_Tuned'}
    assert registered['tuned'] == [f'{loss}_Tuned' for loss in registered['losses']]
    tuned = configuration.parse(groups['Frozen_cars_MS_Tuned'])
    assert (tuned.lr, tuned.loss_multisimilarity_thresh, tuned.loss) == (0.0003, 0.7, 'multisimilarity')
    for loss in registered['losses']:
        assert configuration.parse(groups[f'Frozen_birds_{loss}']).freeze == 'backbone'
    searched = {line[1].removeprefix('Studies/Frozen_') for line in commands['Frozen_Searches']}
    assert searched == {f'{data}_{loss}' for data in settings for loss in registered['losses']} - {'cars_MS'}


def test_searches_tune_flags_of_their_loss_within_its_limits(tmp_path):
    for line in lines(tmp_path, 'Frozen_Searches', SETS='birds')[0]:
        opt, others = Hyperparameter_Search.build().parse_known_args(line)
        tuned = ranges.parse_all(opt.tune)
        loss = others[others.index('--loss') + 1]
        own = [flag for flag in tuned if flag.startswith(f'loss_{loss}_')]
        assert 1 <= len(own) <= 2 and {*tuned} == {'lr', *own}
        assert not tuned.keys() & command_line.given(parameters.build(), others)                # a search refuses both
        highest = {flag: ranges.lowest_and_highest(distribution)[1] for flag, distribution in tuned.items()}
        configuration.parse([*others, *command_line.tokens(ranges.tuned_settings(highest))], DEFAULTS)


@pytest.mark.parametrize('kind', ['one', 'other', 'spread', 'selection', 'setting', 'correlation'])
def test_questions_ask_for_settings_of_the_script(tmp_path, kind):
    registered = yaml.safe_load((ROOT / 'studies' / 'photos.yaml').read_text())
    groups = {name(line)[0] for script in ('Photos_Runs', 'Frozen_Runs') for line in lines(tmp_path, script)[0]}
    asked = [f'{script}_{data}_{setting}' for script, part in (('Photos', 'finetuned'), ('Frozen', 'frozen'))
             for question in registered[part] for data in question.get('sets', registered['sets'])
             for setting in question.get(kind, ())]
    assert asked and {group for group in asked if not group.endswith('_Tuned')} <= groups
