"""
The edits of tests/edits, as researchers make them, act wherever the program trains or embeds: in one process, in
pieces, in two processes, with and without kept features, after a kill, in --evaluate and in retrieval.embed.
"""
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import main
import retrieval
from records import checkpoint
from tests.conftest import quick_flags
from tests.helpers import FROM_COPY, ROOT, executed, folder_of, printed_metrics, rows_of

EDITS = {path.stem: path for path in sorted((Path(__file__).parent / 'edits').glob('*.diff'))}

FLAGS = ['--iterations_per_epoch', '4', '--arch', 'conv4_frozen_normalize', '--freeze', 'backbone', '--augmentation',
         'none', '--optim', 'sgd', '--lr', '0.1', '--loss', 'softmax', '--batch_mining', 'none',
         '--evaluation_metrics', 'e_recall@1', 'map_at_r', 'dists@intra']
# argv: the copy, a JSON list of arguments of runs, one of them with --gpu 0 1, a run folder, and a file for the
# embeddings of its network by Evaluate_Network.py and by retrieval.embed; prints the exit codes
RUNS = FROM_COPY + """
import json
import numpy as np
import Evaluate_Network, retrieval
from tests import forks

forks.install_processes(2)
plan, folder, file = json.loads(sys.argv[2]), *sys.argv[3:]

def run(arguments):
    sys.argv = ['main.py', *arguments]
    return main.main(arguments)

codes = [run(arguments) for arguments in plan]
codes.append(Evaluate_Network.main([folder, 'embeddings', file, '--splits_to_eval', 'test']))
with np.load(file) as found:
    paths, split = found['paths'], found['embeddings']
alone = retrieval.embed(*retrieval.load(folder), [str(path) for path in paths], bs=7)
np.savez(file, paths=paths, split=split, alone=alone.numpy())
print(json.dumps(codes))
"""


def edited(folder, edit):
    """A copy of the last commit, with the edit applied."""
    subprocess.run(f'mkdir "{folder}" && git archive HEAD | tar -x -C "{folder}"', shell=True, cwd=ROOT, check=True)
    subprocess.run(['git', 'apply', EDITS[edit]], cwd=folder, check=True)
    return folder


@pytest.fixture(scope='module')
def unedited(patterns, tmp_path_factory):
    """The folder of a run of the unedited program."""
    place = tmp_path_factory.mktemp('unedited')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('sys.argv', ['main.py'])
        assert main.main([*quick_flags(patterns, place), *FLAGS]) == 0
    return folder_of(place)


def runs(tmp_path, copy, plan, folder, file):
    """Trains by the program `copy`, and embeds by the network in `folder`; (what it printed, its errors)."""
    plan = [[*map(str, arguments)] for arguments in plan]
    code, out, errors = executed(tmp_path, RUNS, copy, json.dumps(plan), folder, file)
    assert code == 0, errors
    assert json.loads(out.splitlines()[-1]) == [0] * (len(plan) + 1), out + errors
    return out, errors


def assert_equal_runs(folders, tolerance=1e-5):
    """The weights and log.csv of the runs, up to the tolerance times the largest number."""
    weights = [checkpoint.load(folder / 'checkpoint_last.pt')['model'] for folder in folders]
    for folder, other in zip(folders[1:], weights[1:], strict=True):
        for name, value in weights[0].items():
            value, found = value.double(), other[name].double()
            assert (value - found).abs().max() <= tolerance * value.abs().max().clamp_min(1e-3), (folder.name, name)
        for row, same in zip(rows_of(folders[0]), rows_of(folder), strict=True):
            expected = {name: float(text or 'nan') for name, text in same.items()}
            found = {name: float(text or 'nan') for name, text in row.items()}
            assert found == pytest.approx(expected, rel=10 * tolerance, abs=tolerance, nan_ok=True), folder.name


def printed_recall(out):
    """The R@1 on the test split that --evaluate printed last."""
    return float(printed_metrics(out[out.rindex('metric '):])['test_e_recall@1'])


@pytest.mark.skipif(not (ROOT / '.git').exists(), reason='not a git checkout')
@pytest.mark.parametrize('edit', EDITS)
def test_an_edit_acts_wherever_the_program_trains_or_embeds(edit, quick, unedited, tmp_path):
    """
    In pieces, in two processes, without kept features, after a resumption, in --evaluate and in retrieval.embed; and
    the unedited program gives other numbers.
    """
    ways = {'whole': [], 'pieces': ['--micro_bs', '5'], 'two': ['--gpu', '0', '1'],
            'computed': ['--keep_features', 'false'], 'half': ['--n_epochs', '1']}
    folders = {name: folder_of(tmp_path, f'{name}_s1') for name in ways}
    whole, file = folders['whole'], tmp_path / 'embeddings.npz'
    plan = [[*quick, *FLAGS, '--group', name, *more] for name, more in ways.items()]
    plan += [['--resume', folders['half'], '--n_epochs', '2'], ['--evaluate', whole]]
    out, errors = runs(tmp_path, edited(tmp_path / 'code', edit), plan, whole, file)
    assert_equal_runs([*folders.values()])
    recall = float(rows_of(whole)[-1]['test_e_recall@1'])
    assert printed_recall(out) == pytest.approx(recall, abs=1e-4)
    with np.load(file) as found:
        np.testing.assert_allclose(found['alone'], found['split'], atol=1e-5)
        as_unedited = retrieval.embed(*retrieval.load(whole), [str(path) for path in found['paths']], bs=7).numpy()
        is_same = np.allclose(found['alone'], as_unedited, atol=1e-4)
    assert is_same == (edit != 'mirror')                    # only this edit changes how a trained network embeds
    with pytest.raises(AssertionError):
        assert_equal_runs([whole, unedited], 1e-3)
