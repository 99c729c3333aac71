"""Evaluate_Network.py: its command line."""
import re
import shlex

import numpy as np
import pytest

from retrieval import actions
from tests.conftest import draw_classes
from tests.helpers import ROOT, after_training, folder_of, printed_metrics
from utilities.errors import UserError

FEW = ['--evaluation_metrics', 'e_recall@1']


def test_metrics_are_those_of_main(quick, run, tmp_path, capsys):
    assert run(*quick, *FEW, '--n_epochs', '0') == 0
    printed = []
    for call, *arguments in ((run, '--evaluate', folder_of(tmp_path)),
                             (after_training, folder_of(tmp_path) / 'checkpoint_last.pt', 'metrics')):
        capsys.readouterr()
        assert call(*arguments, '--evaluation_metrics', 'map_at_r', 'nmi') == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] and 'map_at_r' in printed[0]


def test_a_run_is_evaluated_on_other_data(quick, run, tmp_path, capsys):
    other = draw_classes(tmp_path / 'other' / 'images', 4, 5, seed=3).parent
    assert run(*quick, *FEW, '--n_epochs', '1') == 0
    capsys.readouterr()
    assert run('--evaluate', folder_of(tmp_path), '--source_path', other) == 0
    printed = printed_metrics(capsys.readouterr().out)
    assert after_training(folder_of(tmp_path), 'embeddings', tmp_path / 'out.npz', '--source_path', other) == 0
    written = np.load(tmp_path / 'out.npz')
    assert all(path.startswith(str(other)) for path in written['paths'].tolist()) and len(written['paths']) == 10
    distances = np.linalg.norm(written['embeddings'][:, None] - written['embeddings'].astype(float), axis=2)
    np.fill_diagonal(distances, np.inf)
    right = written['labels'][distances.argmin(axis=1)] == written['labels']
    assert float(printed['test_e_recall@1']) == pytest.approx(right.mean(), abs=1e-4)
    assert run('--evaluate', folder_of(tmp_path), '--dataset', 'cub200', '--source_path', other) == 2
    assert '--dataset cub200: expected' in capsys.readouterr().err


@pytest.mark.parametrize('arguments, sentence', [
    (['--codes', '8'], 'begin with a run folder or checkpoint'),
    (['nowhere'], 'nowhere: not a run folder'), (['nowhere', 'code'], 'did you mean codes?'),
    (['nowhere', 'codes', '--rescore', '5'], 'the following arguments are required: CODE'),
    (['nowhere', 'open_set', '--resume', 'a'], '--resume has no effect on Evaluate_Network.py nowhere open_set'),
    (['nowhere', 'metrics', '--lr', '5'], '--lr has no effect on Evaluate_Network.py nowhere metrics; leave it out'),
    (['nowhere', '--loss=margin'], '--loss has no effect on Evaluate_Network.py nowhere metrics'),
    (['nowhere', 'rerank', '--adam_eps', '3'], '--adam_eps has no effect on Evaluate_Network.py nowhere rerank'),
    (['nowhere', 'codes', 'SQ8', '--pictures', 'tsne'], '--pictures has no effect'),
    (['nowhere', 'embeddings', 'a.npz', '--log_online'], '--log_online has no effect'),
    (['nowhere', 'codes', '8', '--bootstrap', '9'], '--bootstrap has no effect on Evaluate_Network.py nowhere codes')])
def test_sentences(arguments, sentence, capsys):
    assert after_training(*arguments) == 2
    out = capsys.readouterr()
    assert sentence in out.err and len(out.err.splitlines()) == 1 and not out.out


@pytest.mark.parametrize('name', [*actions.ACTIONS, None])
def test_the_manual_of_each_action(name, capsys):
    for arguments in ([name, '--help'], ['RUN', name, '--help']) if name else (['--help'],):
        with pytest.raises(SystemExit) as end:
            after_training(*arguments)
        text = ' '.join(capsys.readouterr().out.split())
        assert not end.value.code and 'main.py --help evaluation' in text
        assert all(action.help in text for known, action in actions.ACTIONS.items() if name in (known, None))


def test_flags_of_an_action_and_of_main_are_told_apart():
    rest = ['0.4', '--eval_level', 'class', 'within', '--fpir=.3', '--input_mean', '-1']
    assert actions.divided(rest, actions.ACTIONS['open_set']) == (
        ['0.4', '--fpir=.3'], ['--eval_level', 'class', 'within', '--input_mean', '-1'])


def test_the_commands_of_the_docs_parse(tmp_path):
    pages = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
    lines = [line for page in pages for block in re.findall(r'```\w*\n(.*?)```', page.read_text(), re.DOTALL)
             for line in block.replace('\\\n', ' ').splitlines() if line.startswith('python Evaluate_Network.py')]
    assert len(lines) > 12
    for line in lines:
        _, _, _, *rest = shlex.split(line, comments=True)
        with pytest.raises(UserError, match='nowhere: not a run folder'):       # the last thing that can be wrong
            actions.parse(['nowhere', *rest])
