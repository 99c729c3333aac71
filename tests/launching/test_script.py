"""launching/script.py: which files are scripts of runs, and what their commands are."""
import pytest

from launching import script
from utilities.errors import UserError


@pytest.mark.parametrize('text, commands', [
    ('#!/bin/bash\n\n# a comment\npython main.py --bs 8 \\\n   --lr 1 # small\n', [['--bs', '8', '--lr', '1']]),
    ('python3 main.py --source $DATAPATH/x --loss_pml_args "{a: 1}"',
     [['--source', '/data/x', '--loss_pml_args', '{a: 1}']]),
])
def test_a_plain_file_of_commands(text, commands, tmp_path, monkeypatch):
    monkeypatch.setenv('DATAPATH', '/data')
    (tmp_path / 'runs.sh').write_text(text)
    assert script.commands(tmp_path / 'runs.sh') == commands


@pytest.mark.parametrize('text, sentence', [
    ('python main.py --seed 1\nfor seed in 1 2; do\n', 'line 2: expected python main.py ...'),
    ('python main.py --source $NOWHERE', r'line 1: \$NOWHERE is for a shell to read'),
    ('python main.py --seed 1 &', 'line 1: & is for a shell to read'),
    ('python main.py --group "a', 'line 1: no closing quotation'),
    ('# nothing\n', 'there is no line python main.py'),
    (f'#!/bin/bash\n{script.MARKER}\nexit 3', '--list failed: exit code 3'),
])
def test_what_is_no_script_of_runs(text, sentence, tmp_path):
    (tmp_path / 'runs.sh').write_text(text)
    with pytest.raises(UserError, match=sentence):
        script.commands(tmp_path / 'runs.sh')
