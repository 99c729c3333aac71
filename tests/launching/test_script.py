"""launching/script.py: which files are scripts of runs, what their commands are, and which of them are executed."""
import os
import random
import re
import subprocess

import pytest

import Launch_Runs
from launching import script
from tests.helpers import ROOT, started
from utilities.errors import UserError


def test_arguments_of_a_script_come_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv('gpu', '3')
    (tmp_path / 'runs.sh').write_text('gpu="$1"\nexport root="data" # where it is\npython main.py --gpu $gpu $root')
    assert script.commands(tmp_path / 'runs.sh') == [['--gpu', '3', 'data']]


@pytest.mark.parametrize('text, sentence', [
    ('python main.py --seed 1\nfor seed in 1 2; do\n', 'line 2: expected python main.py ...'),
    ('cd /somewhere\npython main.py', 'line 1: expected python main.py ..., not cd /somewhere'),
    ('source run_lines.sh\nline --seed 1', 'line 1: expected .*second line "# Launch_Runs.py executes this'),
    ('python main.py --source $NOWHERE', r'line 1: \$NOWHERE has no value; .*NOWHERE=VALUE python'),
    ('python main.py --gpu $1', r'line 1: \$1 is an argument of a script, .* gpu=0 python Launch_Runs.py'),
    ('gpu=${1:-0}\npython main.py --gpu $gpu', r'line 1: only a shell can interpret \${1:-0}'),
    ('python main.py --seed 1 &', 'line 1: only a shell can interpret &'),
    ('# nothing\n', 'there is no line python main.py'),
    (f'#!/bin/bash\n{script.MARKER}\nexit 3', '--list failed: exit code 3'),
    (f'#!/bin/bash\n{script.MARKER}\necho ls', 'output of .*runs.sh --list, line 1: expected python main.py'),
])
def test_what_is_no_script_of_runs(text, sentence, tmp_path, monkeypatch):
    monkeypatch.delenv('gpu', raising=False)
    (tmp_path / 'runs.sh').write_text(text)
    with pytest.raises(UserError, match=sentence):
        script.commands(tmp_path / 'runs.sh')


# The program of a line is a function that prints its arguments, each ended by a byte 0.
BASH = 'python() { shift; [ $# = 0 ] || printf "%s\\0" "$@"; }\n'
VALUES = {'HOME': '/home/someone', 'EMPTY': '', 'TWO': ' --bs  8 ', 'ROOT': '/data', 'ODD': 'a\\b$c"d',
          'PATH': os.environ['PATH']}


def by_bash(text, folder, **values):
    """The arguments as bash reads them; None where it refuses the text."""
    done = subprocess.run(['bash', '-c', BASH + text], cwd=folder, env=VALUES | values, capture_output=True, timeout=20)
    return None if done.returncode else done.stdout.decode().split('\0')[:-1]


@pytest.fixture()
def read(tmp_path, monkeypatch):
    """text -> the arguments of its only run."""
    for name, value in VALUES.items():
        monkeypatch.setenv(name, value)

    def read(text):
        (tmp_path / 'runs.sh').write_text(text)
        return script.commands(tmp_path / 'runs.sh')[0]
    return read


@pytest.mark.parametrize('line', [
    # as in the public code, and as its users write it
    'python main.py --dataset cub200 --kernels 6 --source $HOME/Datasets --n_epochs 150 --tau 55 --gamma 0.1',
    'python main.py --kernels 6 --source "$HOME/Datasets" --group CUB_Margin --seed 0',
    'datapath="$HOME/my data"\npython main.py --dataset cub200 --source "$datapath" --gpu 0 --bs 112 \\\n --loss npair',
    'python main.py --source ~/Datasets --save_path ~', 'data=~/Datasets\npython main.py --source "$data"',
    "python main.py --source '~/Datasets' \\~ \"~/x\"",
    "python main.py --group '$ROOT' '\\$ROOT' 'a\"b' a'b c'd", 'python main.py --group \\$ROOT "\\$ROOT" \\"a\\" a\\ b',
    'python main.py --loss_pml_args "{margin: 0.1, swap: true}" --group "a*b" \'{a,b}\' \\*',
    'python main.py "a\\b" "a\\\\b" a\\b "\\n" "it\'s"',
    'python main.py $TWO --group $EMPTY "$EMPTY" "$TWO" ${ROOT}x $ROOT/$EMPTY',
    'more="--bs 8 --seed 1"\nall=$more\npython main.py $all', 'python main.py $ODD "$ODD"',
    'python main.py --group a#b # c \\\n', "# don't \\\npython main.py --group 'two\nlines' ab\\\ncd \"e\\\nf\"",
    'python main.py --seed 1 \\\n', "#it's\n\n\tpython\tmain.py  --group ''\n",
])
def test_a_line_is_read_as_bash_reads_it(line, read, tmp_path):
    assert read(line) == by_bash(line, tmp_path)


@pytest.mark.parametrize('line, sentence', [
    ('python main.py --splits *.json', r'only a shell can interpret \*.json; write a plain command, with such text in'),
    ('python main.py --seed {0..4}', 'only a shell'), ('python main.py --source ~root/data', 'only a shell'),
    ('python main.py --source=~/data', 'only a shell can interpret --source=~/data'),
    ("python main.py --group $'a'", 'only a shell'),
    ('all="*.py"\npython main.py $all', r'value of \$all, \*.py, by several words; write "\$all"'),
    ('python main.py --group a$TWO', r'value of \$TWO,  --bs  8 , by several words'),
    ("python main.py --group 'a", 'a quotation or a backslash without its end'),
])
def test_a_line_that_bash_would_change_is_refused(line, sentence, read):
    with pytest.raises(UserError, match=sentence):
        read(line)


def test_a_run_script_in_the_form_of_the_public_code(tmp_path, monkeypatch, capsys):
    """Its quotes, its headings, and lines as its users change them: each run is the one that bash would start."""
    text = r'''datapath="$HOME/Datasets"
"""============= Baseline Runs --- CUB200-2011 ===================="""
python main.py --dataset cub200 --kernels 6 --source $HOME/Datasets --n_epochs 150 --log_online --project Revisit \
  --group 'CUB Margin' --seed 0 --gpu $gpu --bs 112 --samples_per_class 2 --loss margin --batch_mining distance
python main.py --dataset cub200 --kernels 6 --source "$datapath" --seed 1   # don't change
### Specific Margin Setting
python main.py --dataset cars196 --source ~/Datasets --group "CARS_\$5" --seed 2 --tau 30 55
'''
    monkeypatch.setenv('HOME', '/home/someone')
    monkeypatch.setenv('gpu', '0')
    (tmp_path / 'runs.sh').write_text(text)
    read = script.commands(tmp_path / 'runs.sh')
    heading, rest = re.search('^""".*\n', text, re.MULTILINE)[0], re.sub('^""".*\n', '', text, flags=re.MULTILINE)
    assert heading and sum(read, []) == by_bash(rest, tmp_path, HOME='/home/someone', gpu='0')
    assert read[1][5] == read[0][5] == read[2][3] == '/home/someone/Datasets'
    assert Launch_Runs.main([str(tmp_path / 'runs.sh'), '--dry_run']) == 0
    assert '3 runs; all command lines are valid.' in capsys.readouterr().out


def test_a_random_line_is_read_as_bash_reads_it_or_refused(read, tmp_path):
    pieces, draw, n_read = ['a', '1', ' ', ' ', '"', "'", '\\', '$', '~', '/', '{', ',', '}', '#', '=', ':', '\n', '*',
                            '$ROOT', '$TWO', '${EMPTY}', '$ODD', '"$TWO"', '|', '..'], random.Random(0), 0
    for _ in range(150):
        line = 'python main.py ' + ''.join(draw.choices(pieces, k=draw.randrange(1, 8)))
        try:
            found = read(line)
        except UserError:
            continue
        n_read += 1
        assert found == by_bash(line, tmp_path), line
    assert n_read > 30


@pytest.mark.parametrize('text', [
    '# --list\ntouch {mark}\npython main.py --seed 1',
    '#!/bin/bash\n# ./runs.sh [--list]\ntouch {mark}\npython main.py --seed 1',
    'python main.py --seed 1 --group "$(touch {mark})" # --list',
    'python main.py --seed 1 --group `touch {mark}` # --list',
    'group=$(touch {mark})\npython main.py --group $group # --list',
    f'# first\n{script.MARKER}\ntouch {{mark}}\npython main.py',                # without #!
    f'#!/bin/bash\n\n{script.MARKER}\ntouch {{mark}}\npython main.py',          # not the second line
    f'#!/bin/bash\n  {script.MARKER}\ntouch {{mark}}\npython main.py',
])
def test_no_file_is_executed_that_does_not_ask_for_it(text, tmp_path, capsys):
    (tmp_path / 'runs.sh').write_text(text.replace('{mark}', str(tmp_path / 'mark')))
    for mode in ('--dry_run', '--status', '--workers=1') if text.startswith('# --list') else ('--dry_run',):
        assert Launch_Runs.main([str(tmp_path / 'runs.sh'), mode]) == 2
        assert not (tmp_path / 'mark').exists()
        assert 'runs.sh, line' in capsys.readouterr().err


def test_a_script_that_is_executed_is_named_before(tmp_path):
    """The script sees what has been printed until it runs."""
    runs, printed = tmp_path / 'runs.sh', tmp_path / 'printed.txt'
    runs.write_text(f'#!/bin/bash\n{script.MARKER}\ncp {printed} {tmp_path}/before.txt\n'
                    'for seed in 0 1; do echo "python main.py --seed $seed"; done\n')
    assert started(printed, ROOT / 'Launch_Runs.py', runs, '--dry_run').wait(120) == 0
    assert (tmp_path / 'before.txt').read_text() == f'Executing bash {runs} --list\n'


def test_the_script_of_the_docs_is_taken(tmp_path, capsys):
    page = (ROOT / 'docs' / 'run_scripts.md').read_text().partition('## Your own script')[2]
    own, plain = re.findall(r'```bash\n(.*?)```', page, re.DOTALL)[:2]
    for name, text, n_runs in (('own', own, 9), ('plain', plain, 2)):
        (tmp_path / f'{name}.sh').write_text(text.replace('source run_scripts', f'source {ROOT}/run_scripts'))
        assert Launch_Runs.main([str(tmp_path / f'{name}.sh'), '--dry_run']) == 0
        assert f'{n_runs} runs; all command lines are valid.' in capsys.readouterr().out
