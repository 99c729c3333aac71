"""
The edits of tests/edits, as researchers make them, act wherever the program trains or embeds: in one process, in
pieces, in two processes, with and without kept features, after a kill, in --evaluate, in an index and its queries and
in retrieval.embed.
"""
import json

import numpy as np
import pytest

import main
import retrieval
import Retrieve_Images
from records import checkpoint
from tests.conftest import quick_flags
from tests.helpers import FROM_COPY, ROOT, applied, copied, executed, folder_of, printed_metrics, rows_of

EDITS = {path.stem: path.read_text() for path in sorted((ROOT / 'tests' / 'edits').glob('*.diff'))}
WITH_OWN_TESTS = {'noise_in_the_step', 'transform_by_epoch', 'whitening'}

FLAGS = ['--iterations_per_epoch', '4', '--arch', 'conv4_frozen_normalize', '--freeze', 'backbone', '--augmentation',
         'none', '--optim', 'sgd', '--lr', '0.1', '--loss', 'softmax+triplet', '--batch_mining', 'none+random',
         '--loss_weights', '0.1', '1', '--loss_triplet_margin', '4', '--evaluation_metrics', 'e_recall@1', 'map_at_r',
         'dists@intra']
# argv: the copy, a JSON list of arguments of runs, some of them with --gpu 0 1, and what EMBEDS needs
RUNS = FROM_COPY + """
import json
from tests import forks

plan, embeds = json.loads(sys.argv[2]), sys.argv[3:]
forks.install_processes(2 * sum('--gpu' in arguments for arguments in plan))

def run(arguments):
    sys.argv = ['main.py', *arguments]
    return main.main(arguments)

codes = [run(arguments) for arguments in plan]
"""
# After RUNS. embeds: a run folder, and a file for the embeddings of its network by Evaluate_Network.py, by
# retrieval.embed and of an index, and for the image of the index that is nearest to each but itself
EMBEDS = """
import numpy as np
import Evaluate_Network, Retrieve_Images, retrieval
folder, file = embeds
codes.append(Evaluate_Network.main([folder, 'embeddings', file, '--splits_to_eval', 'test', '--gpu', '0']))
with np.load(file) as found:
    paths, labels, split = found['paths'], found['labels'], found['embeddings']
images = [str(path) for path in paths]
alone = retrieval.embed(*retrieval.load(folder), images, bs=7)
codes.append(Retrieve_Images.main(['index', folder, *images, '--out', file + '.index', '--kernels', '0']))
codes.append(Retrieve_Images.main(['query', file + '.index', *images, '--k', '2', '--json', file + '.json',
                                   '--kernels', '0']))
index = retrieval.Index(file + '.index')
place = {path: row for row, path in enumerate(index.paths)}
indexed = index.embeddings[[place[path] for path in images]]
with open(file + '.json') as opened:
    answers = {answer['query']: [one['path'] for one in answer['nearest']] for answer in json.load(opened)}
nearest = [next(images.index(path) for path in answers[image] if path != image) for image in images]
np.savez(file, paths=paths, labels=labels, split=split, alone=alone.numpy(), indexed=indexed, nearest=nearest)
"""


@pytest.fixture(scope='module')
def unedited(patterns, tmp_path_factory):
    """The folder of a run of the unedited program."""
    place = tmp_path_factory.mktemp('unedited')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('sys.argv', ['main.py'])
        assert main.main([*quick_flags(patterns, place), *FLAGS]) == 0
    return folder_of(place)


def runs(tmp_path, copy, plan, *embeds):
    """Trains by the program `copy`. embeds: what EMBEDS needs, if it embeds too. Returns what it printed."""
    plan = [[*map(str, arguments)] for arguments in plan]
    code = f'{RUNS}{EMBEDS if embeds else ""}print(json.dumps(codes))'
    code, out, errors = executed(tmp_path, code, copy, json.dumps(plan), *embeds)
    assert code == 0, errors
    assert {*json.loads(out.splitlines()[-1])} == {0}, out + errors
    return out


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


def assert_embeds_alike(file, recall):
    """The same embeddings by Evaluate_Network.py, retrieval.embed and an index, whose queries have this R@1."""
    with np.load(file) as found:
        for way in ('alone', 'indexed'):
            np.testing.assert_allclose(found[way], found['split'], atol=1e-5)
        labels = found['labels']
        assert (labels[found['nearest']] == labels).mean() == pytest.approx(recall, abs=1e-4)


@pytest.mark.parametrize('edit', sorted(EDITS.keys() - WITH_OWN_TESTS))
def test_an_edit_acts_wherever_the_program_trains_or_embeds(edit, quick, unedited, tmp_path):
    """
    In pieces, in two processes, without kept features, after a resumption, in --evaluate, in an index and its queries
    and in retrieval.embed; and the unedited program gives other numbers.
    """
    ways = {'whole': [], 'pieces': ['--micro_bs', '5'], 'two': ['--gpu', '0', '1'],
            'computed': ['--keep_features', 'false'], 'half': ['--n_epochs', '1']}
    folders = {name: folder_of(tmp_path, f'{name}_s1') for name in ways}
    whole, file = folders['whole'], tmp_path / 'embeddings.npz'
    plan = [[*quick, *FLAGS, '--group', name, *more] for name, more in ways.items()]
    plan += [['--resume', folders['half'], '--n_epochs', '2'], ['--evaluate', whole]]
    out = runs(tmp_path, applied(EDITS[edit], copied(tmp_path / 'code')), plan, whole, file)
    assert_equal_runs([*folders.values()])
    recall = float(rows_of(whole)[-1]['test_e_recall@1'])
    assert printed_recall(out) == pytest.approx(recall, abs=1e-4)
    assert_embeds_alike(file, recall)
    with np.load(file) as found:
        as_unedited = retrieval.embed(*retrieval.load(whole), [str(path) for path in found['paths']], bs=7).numpy()
        is_same = np.allclose(found['alone'], as_unedited, atol=1e-4)
    assert is_same == (edit != 'mirror')                    # only this edit changes how a trained network embeds
    with pytest.raises(AssertionError):
        assert_equal_runs([whole, unedited], 1e-3)


def test_data_workers_have_the_transform_of_the_epoch(quick, tmp_path):
    """Images of 24, 32 and 40 pixels, by two data workers as without any, and after a resumption."""
    folders = [folder_of(tmp_path, f'{name}_s1') for name in ('none', 'two', 'half')]
    arguments = [*quick, '--pool', 'avg', '--n_epochs', '3', '--tuple_statistics']
    plan = [[*arguments, '--group', 'none'], [*arguments, '--group', 'two', '--kernels', '2'],
            [*arguments, '--group', 'half', '--kernels', '2', '--n_epochs', '1'],
            ['--resume', folders[2], '--n_epochs', '3']]
    runs(tmp_path, applied(EDITS['transform_by_epoch'], copied(tmp_path / 'code')), plan)
    assert [float(row['step_side']) for row in rows_of(folders[1])[1:]] == [24, 32, 40]
    for other in folders[1:]:
        assert_equal_runs([folders[0], other], 0)


def test_two_processes_draw_different_numbers_in_the_step(quick, tmp_path):
    """12 for a batch of 12 images; the same ones after a resumption, and others with other seeds."""
    arguments = [*quick, '--gpu', '0', '1', '--tuple_statistics']
    names = {'whole': [], 'half': ['--n_epochs', '1'], 'other': ['--seed', '2']}
    plan = [[*arguments, '--group', name, *more] for name, more in names.items()]
    whole, half = (folder_of(tmp_path, f'{name}_s1') for name in ('whole', 'half'))
    plan.append(['--resume', half, '--n_epochs', '2', '--gpu', '0', '1'])
    runs(tmp_path, applied(EDITS['noise_in_the_step'], copied(tmp_path / 'code')), plan)
    assert [float(row['step_n_numbers']) for row in rows_of(whole)[1:]] == [12, 12]
    assert_equal_runs([whole, half], 0)
    with pytest.raises(AssertionError):
        assert_equal_runs([whole, folder_of(tmp_path, 'other_s2')], 1e-3)


def test_whitening_acts_wherever_images_are_embedded(quick, unedited, tmp_path, capsys):
    """By a new flag of the embedding; the program without the flag refuses the run and its index."""
    whole, half, file = folder_of(tmp_path, 'whole_s1'), folder_of(tmp_path, 'half_s1'), tmp_path / 'embeddings.npz'
    arguments = [*quick, *FLAGS, '--whiten']
    plan = [[*arguments, '--group', 'whole'], [*arguments, '--group', 'half', '--n_epochs', '1'],
            ['--resume', half, '--n_epochs', '2'], ['--evaluate', whole]]
    out = runs(tmp_path, applied(EDITS['whitening'], copied(tmp_path / 'code')), plan, whole, file)
    assert_equal_runs([whole, half])
    recall = float(rows_of(whole)[-1]['test_e_recall@1'])
    assert printed_recall(out) == pytest.approx(recall, abs=1e-4)
    assert_embeds_alike(file, recall)
    with np.load(file) as found:
        paths, whitened = [str(path) for path in found['paths']], found['alone']
    embeddings = retrieval.embed(*retrieval.load(unedited), paths).numpy()
    assert not np.allclose(whitened, embeddings, atol=1e-2)
    kept = checkpoint.load(whole / 'checkpoint_last.pt')['model']
    expected = (embeddings - kept['centre'].numpy()) @ kept['whitening'].numpy()
    np.testing.assert_allclose(whitened, expected, atol=1e-4)
    assert Retrieve_Images.main(['query', f'{file}.index', paths[0]]) == 2
    refused = capsys.readouterr().err
    assert 'flags that do not exist here, which are left out: --whiten' in refused
    assert 'its weights do not fit the flags' in refused
