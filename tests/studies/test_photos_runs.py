"""studies/Photos_Runs.sh: its runs, what the rows of finished runs leave out, and the settings of its questions."""
import os
import subprocess
from pathlib import Path

import pytest
import yaml

import configuration

CODE = Path(__file__).parents[2]


def lines(rows, **environment):
    done = subprocess.run(['studies/Photos_Runs.sh', '--list'], cwd=CODE, capture_output=True, text=True, check=True,
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


@pytest.mark.parametrize('kind', ['one', 'other', 'spread', 'selection', 'setting', 'correlation'])
def test_questions_ask_for_settings_of_the_script(tmp_path, kind):
    registered = yaml.safe_load((CODE / 'studies' / 'photos.yaml').read_text())
    groups = {name(line)[0] for line in lines(tmp_path)[0]}
    asked = [f'Photos_{data}_{setting}' for question in registered['finetuned']
             for data in question.get('sets', registered['sets']) for setting in question.get(kind, ())]
    assert asked and set(asked) <= groups
