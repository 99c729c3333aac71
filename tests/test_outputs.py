"""Outputs that cannot be written, outside training: a sentence before the work, or after it where the disk fills up."""
import errno
import os
import stat
import threading
from pathlib import Path

import pytest

import Evaluate_Ensemble
import Evaluate_Network
import Result_Evaluations
import Retrieve_Images
from evaluation import pictures, protocol
from reports import ensemble_evaluation, results
from retrieval import commands, loading, review
from tests.helpers import full_after
from tests.retrieval.conftest import train
from utilities import errors, files
from utilities.errors import Unwritable, UserError

MACHINE = ['--device', 'cpu', '--kernels', '0']
# command: (what the test calls, its arguments, the flag in the sentence, what does the work)
COMMANDS = {
    'export': (Evaluate_Network, '{run} export {out}.pt2', 'export', (loading, 'restore')),
    'hub': (Evaluate_Network, '{run} export --hub {out}', 'export', (loading, 'restore')),
    'embeddings': (Evaluate_Network, '{run} embeddings {out}.npz', 'embeddings', (protocol, 'embed_splits')),
    'pictures': (Evaluate_Network, '{run} pictures {out} --pictures distances', 'pictures', (pictures, 'embed_splits')),
    'latex': (Result_Evaluations, '--runs {runs} --latex {out}.tex', '--latex', (results.runs, 'collect')),
    'rows': (Result_Evaluations, '--runs {runs} --rows {out}.csv', '--rows', (results.runs, 'collect')),
    'figures': (Result_Evaluations, '--runs {runs} --figures {out}', '--figures', (results.runs, 'collect')),
    'ensemble': (Evaluate_Ensemble, '{run} --save_path {out}', '--save_path', (ensemble_evaluation.folds, 'gather')),
    'suspects': (Retrieve_Images, 'suspects {run} --out {out}.csv', '--out', (review.parts, 'restore')),
    'picture': (Retrieve_Images, 'query {index} {photos} --picture {out}.png', '--picture', (commands, 'load_index')),
    'json': (Retrieve_Images, 'query {index} {photos} --json {out}.json', '--json', (commands, 'load_index')),
    'index': (Retrieve_Images, 'index {run} {photos} --out {out}', '--out', (loading, 'embed_in_batches')),
    'add': (Retrieve_Images, 'add {index} {photos}', 'index', (loading, 'embed_in_batches')),
}


@pytest.fixture(scope='module')
def places(tmp_path_factory):
    """{'run', 'runs', 'index', 'photos'}: a run, and an index of photos that lacks one of them."""
    place = tmp_path_factory.mktemp('outputs')
    run = train(place)
    photos = place / 'data' / 'images'
    assert Retrieve_Images.main(['index', str(run), str(photos / 'class_00'), '--out', str(place / 'index'), *MACHINE]
                                ) == 0
    return {'run': run, 'runs': place / 'runs', 'index': place / 'index', 'photos': photos / 'class_01'}


def called(name, places, out, capsys):
    script, line, *_ = COMMANDS[name]
    arguments = line.format(**places, out=out).split()
    arguments += {Retrieve_Images: MACHINE, Result_Evaluations: ['--metrics', 'e_recall@1']}.get(script, [])
    capsys.readouterr()
    code = script.main(arguments)
    return code, capsys.readouterr().err


@pytest.mark.parametrize('name', COMMANDS)
def test_a_place_that_takes_nothing_is_refused_before_the_work(name, places, tmp_path, monkeypatch, capsys):
    *_, flag, (module, work) = COMMANDS[name]

    def must_not_be_called(*arguments, **more):
        raise AssertionError(f'{work} was called')

    monkeypatch.setattr(module, work, must_not_be_called)
    before = sorted(path for place in (places['runs'], places['index']) for path in place.rglob('*'))
    with full_after(0):
        code, error = called(name, places, tmp_path / 'out', capsys)
    assert code == 2 and len(error.splitlines()) <= 2, error
    assert f'error: {flag}' in error and os.strerror(errno.EFBIG) in error
    assert sorted(path for place in (places['runs'], places['index']) for path in place.rglob('*')) == before


@pytest.mark.parametrize('name', ['embeddings', 'hub', 'latex', 'figures', 'suspects', 'add'])
def test_a_disk_that_fills_up_is_a_sentence_that_names_the_file(name, places, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(files, 'BLOCK', 1)
    with full_after(60):
        code, error = called(name, places, tmp_path / 'out', capsys)
    named = {'add': str(places['index'])}.get(name, f'{tmp_path}/out')
    assert code == 2 and f'error: {named}' in error and 'its disk is full' in error and 'Traceback' not in error, error
    assert not [path for path in tmp_path.rglob('*') if path.is_file()]


def test_a_read_only_place_is_a_sentence(tmp_path):
    place = tmp_path / 'fixed'
    place.mkdir()
    place.chmod(0o555)
    if os.access(place, os.W_OK):                                    # of the super-user
        place = Path('/sys')
        if not place.is_dir() or os.access(place / 'kernel', os.F_OK) is False:
            pytest.skip('there is no folder that refuses the super-user')
    with pytest.raises(UserError, match=f'--latex {place}/t.tex: it cannot be written [(].*[)]; choose another place'):
        files.require_writable(place / 't.tex', '--latex')
    for folder in (place, place / 'a' / 'b'):
        with pytest.raises(UserError, match=f'--figures {folder}: nothing can be written there [(].*; choose another'):
            files.require_writable_folder(folder, '--figures')
    with pytest.raises(Unwritable, match=f'{place}/t.tex: no access [(].*[)]; allow it, or choose another place'):
        files.write_text(place / 't.tex', 'text')


def test_other_errors_of_the_system_keep_their_traceback(tmp_path):
    with pytest.raises(FileNotFoundError), files.atomic(tmp_path / 'a'):
        open(tmp_path / 'nowhere')

    def fail():
        raise OSError(errno.ENOTEMPTY, 'not empty')

    with pytest.raises(OSError, match='not empty'):
        errors.exit_code('x.py', fail)


LINES = {'latex': (Result_Evaluations, '--runs {runs} --latex {out}'),
         'rows': (Result_Evaluations, '--runs {runs} --rows {out}'),
         'json': (Retrieve_Images, 'query {index} {photos} --json {out}'),
         'csv': (Retrieve_Images, 'query {index} {photos} --csv {out}'),
         'embeddings': (Evaluate_Network, '{run} embeddings {out}')}


@pytest.mark.parametrize('name', LINES)
def test_pipes_are_written_into_and_links_followed(name, places, tmp_path, capsys):
    """As root, a device that is replaced by a file is gone for the whole machine."""
    script, line = LINES[name]
    pipe, link, target = tmp_path / 'pipe', tmp_path / 'link', tmp_path / 'elsewhere' / 'target'
    os.mkfifo(pipe)
    target.parent.mkdir()
    target.write_bytes(b'before')
    link.symlink_to(target)
    arguments = {Retrieve_Images: MACHINE, Result_Evaluations: ['--metrics', 'e_recall@1']}.get(script, [])
    contents = []
    reader = threading.Thread(target=lambda: contents.append(pipe.read_bytes()), daemon=True)
    reader.start()
    for out in (pipe, link):
        assert script.main([*line.format(**places, out=out).split(), *arguments]) == 0
    reader.join(timeout=60)
    assert stat.S_ISFIFO(pipe.stat().st_mode) and link.is_symlink() and link.resolve() == target
    contents.append(target.read_bytes())
    assert len(contents) == 2 and contents[0] == contents[1] != b'before' and len(contents[0]) > 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ['elsewhere', 'link', 'pipe']
    assert [path.name for path in target.parent.iterdir()] == ['target']
