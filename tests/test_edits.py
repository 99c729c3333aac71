"""
The edits of tests/edits, as researchers make them, act wherever the program trains or embeds: in one process, in
pieces, in two processes, with and without kept features, after a kill, in --evaluate and in retrieval.embed.
"""
import json
import subprocess
from pathlib import Path

import pytest

from records import checkpoint
from tests.helpers import FROM_COPY, ROOT, assert_same_end, executed, folder_of, rows_of

EDITS = {path.stem: path for path in sorted((Path(__file__).parent / 'edits').glob('*.diff'))}

# argv: the copy, a JSON list of [name of the run, arguments]; prints the exit codes
RUNS = FROM_COPY + """
import json

def run(arguments):
    sys.argv = ['main.py', *arguments]
    return main.main(arguments)

print(json.dumps([run(arguments) for arguments in json.loads(sys.argv[2])]))
"""


def edited(folder, edit=None):
    """A copy of the last commit, with the edit applied."""
    subprocess.run(f'mkdir "{folder}" && git archive HEAD | tar -x -C "{folder}"', shell=True, cwd=ROOT, check=True)
    if edit:
        subprocess.run(['git', 'apply', EDITS[edit]], cwd=folder, check=True)
    return folder


def runs(tmp_path, copy, *arguments):
    code, out, errors = executed(tmp_path, RUNS, copy, json.dumps([[*map(str, each)] for each in arguments]))
    assert code == 0, errors
    assert json.loads(out.splitlines()[-1]) == [0] * len(arguments), out + errors
    return out, errors


def assert_equal_runs(tmp_path, names, tolerance=1e-5):
    """The weights and log.csv of the runs, up to the tolerance times the largest number."""
    folders = [folder_of(tmp_path, f'{name}_s1') for name in names]
    weights = [checkpoint.load(folder / 'checkpoint_last.pt')['model'] for folder in folders]
    for folder, other in zip(folders[1:], weights[1:], strict=True):
        for name, value in weights[0].items():
            value, found = value.double(), other[name].double()
            assert (value - found).abs().max() <= tolerance * value.abs().max().clamp_min(1e-3), (folder.name, name)
        for row, same in zip(rows_of(folders[0]), rows_of(folder), strict=True):
            expected = {name: float(text or 'nan') for name, text in same.items()}
            found = {name: float(text or 'nan') for name, text in row.items()}
            assert found == pytest.approx(expected, rel=10 * tolerance, abs=tolerance, nan_ok=True), folder.name


@pytest.mark.skipif(not (ROOT / '.git').exists(), reason='not a git checkout')
@pytest.mark.parametrize('edit', ['accumulation', 'term_on_embeddings'])
def test_an_edit_of_the_step(edit, quick, tmp_path):
    """In pieces, and in two processes."""
    flags = [*quick, '--iterations_per_epoch', '4', '--arch', 'conv4_frozen_normalize', '--optim', 'sgd', '--lr', '0.1',
             '--loss', 'softmax', '--batch_mining', 'none', '--evaluation_metrics', 'e_recall@1', 'map_at_r']
    ways = {'whole': [], 'pieces': ['--micro_bs', '5'], 'two': ['--gpu', '0', '1']}
    runs(tmp_path, edited(tmp_path / 'code', edit), *([*flags, '--group', name, *more] for name, more in ways.items()))
    runs(tmp_path, ROOT, [*flags, '--group', 'without'])
    assert_equal_runs(tmp_path, ways)
    with pytest.raises(AssertionError):
        assert_equal_runs(tmp_path, ['whole', 'without'], 1e-3)


@pytest.mark.skipif(not (ROOT / '.git').exists(), reason='not a git checkout')
@pytest.mark.parametrize('edit', ['mirror', 'unfreezing'])
def test_an_edit_of_what_is_embedded(edit, quick, tmp_path):
    """With and without kept features. Where else the mirror image acts: evaluation/test_embedding.py."""
    flags = [*quick, '--freeze', 'backbone', '--augmentation', 'none', '--n_epochs', '3', '--lr', '0.1',
             '--evaluation_metrics', 'e_recall@1', 'map_at_r', 'dists@intra']
    ways = {'kept': [], 'computed': ['--keep_features', 'false']}
    runs(tmp_path, edited(tmp_path / 'code', edit), *([*flags, '--group', name, *more] for name, more in ways.items()))
    runs(tmp_path, ROOT, [*flags, '--group', 'without'])
    assert_equal_runs(tmp_path, ways)
    with pytest.raises(AssertionError):
        assert_equal_runs(tmp_path, ['kept', 'without'], 1e-3)


@pytest.mark.skipif(not (ROOT / '.git').exists(), reason='not a git checkout')
@pytest.mark.parametrize('edit', ['state_in_a_buffer', 'state_in_an_attribute'])
def test_a_loss_that_remembers_the_last_batch(edit, quick, tmp_path):
    """A resumed run goes on with it where it is a buffer; an attribute is named."""
    flags = [*quick, '--iterations_per_epoch', '4', '--optim', 'sgd', '--lr', '0.1', '--loss', 'softmax',
             '--batch_mining', 'none', '--evaluation_metrics', 'e_recall@1', 'map_at_r']
    half = folder_of(tmp_path, 'half_s1')
    _, errors = runs(tmp_path, edited(tmp_path / 'code', edit), [*flags, '--group', 'whole'],
                     [*flags, '--group', 'half', '--n_epochs', '1'], ['--resume', half, '--n_epochs', '2'])
    note = 'Note: criteria/softmax.py: self.earlier changes in training but is not saved; register it:'
    if edit == 'state_in_a_buffer':
        assert_same_end(folder_of(tmp_path, 'whole_s1'), half)
        assert note not in errors
    else:
        with pytest.raises(AssertionError):
            assert_same_end(folder_of(tmp_path, 'whole_s1'), half)
        assert errors.count(note) == 3                                  # once in each process
