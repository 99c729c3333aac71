"""Queries that are unknown: the threshold of a run in an index, and one set by hand."""
import argparse
import json
import shutil

import numpy as np
import pytest

import retrieval
from retrieval import changes, store, unknown
from tests.retrieval.test_index import images_of

ROW = {'gallery_size': 10, 'threshold': 0.999999, 'fpir': 0.1, 'fnir': 0.25, 'threshold_low': 0.9,
       'threshold_high': 1, 'fpir_low': 0.05, 'fpir_high': 0.2, 'fnir_low': 0.125, 'fnir_high': 0.5}


@pytest.fixture
def calibrated(trained, tmp_path):
    """A function: a copy of the run `trained` whose threshold is ROW, with changes of the file's content."""
    def make(**changes):
        run = shutil.copytree(trained, tmp_path / 'runs' / 'calibrated', dirs_exist_ok=True)
        (run / 'open_set.json').write_text(json.dumps({
            'network_id': retrieval.load(trained, 'cpu')[0].id, 'own_similarity': None, 'share': 0.5, 'fpir': 0.1,
            'seed': 1, 'reason': None, 'threshold': ROW, 'test': {}} | changes))
        return run
    return make


def test_an_index_takes_the_threshold_of_its_run(call, calibrated, photos, tmp_path):
    """An image of the index has similarity 1, which is known; another is not."""
    run, index = calibrated(), tmp_path / 'index'
    gallery, (same, *_), other = photos / 'class_00', images_of(photos / 'class_00'), images_of(photos / 'class_01')[0]
    code, out, _ = call('index', run, gallery, '--out', index)
    assert code == 0 and out.endswith(
        '6 images, exact search; unknown below a similarity of 1.0000 (for 10 images; expected: FPIR 0.100 '
        '[0.050, 0.200], FNIR 0.250 [0.125, 0.500])\n')
    assert store.read(index)['open_set'] == ROW
    code, out, _ = call('query', index, same, other, '--k', '1', '--json', tmp_path / 'found.json', '--picture',
                        tmp_path / 'found.svg')
    found, lines = json.loads((tmp_path / 'found.json').read_text()), out.splitlines()
    assert [row['unknown'] for row in found] == [False, True] and found[1]['threshold'] == ROW['threshold']
    similarity = 1 - found[1]['nearest'][0]['distance'] ** 2 / 2
    assert found[1]['similarity'] == pytest.approx(similarity, abs=1e-5) and found[0]['similarity'] == pytest.approx(1)
    assert lines[1] == '  known: the nearest similarity 1.0000 is at least the threshold 1.0000'
    assert lines[5] == f'  unknown: the nearest similarity {similarity:.4f} is below the threshold 1.0000'
    assert call('query', index, other, '--threshold', '-9')[1].splitlines()[1].startswith('  known: ')
    assert call('query', index, other, '--threshold', 'none')[1].splitlines()[1].startswith('  rank')
    assert 'unknown below' in call('add', index, photos / 'class_01')[1]             # an addition keeps it
    code, out, _ = call('index', run, gallery, '--out', index, '--threshold', '0.5')
    assert code == 0 and out.endswith('unknown below a similarity of 0.5000, set by hand\n')
    assert call('index', run, gallery, '--out', index, '--threshold', 'none')[1].endswith('exact search\n')
    assert store.read(index)['open_set'] is None
    code, _, err = call('query', index, other, '--threshold', 'high')
    assert code == 2 and 'expected a similarity or none, not high' in err


def test_an_index_without_a_threshold_is_as_before(call, trained, photos, tmp_path):
    assert call('index', trained, photos / 'class_00', '--out', tmp_path / 'index')[1].endswith('exact search\n')
    index = retrieval.Index(tmp_path / 'index')
    assert store.read(tmp_path / 'index')['open_set'] is None and index.open_set is None
    assert index.answers(np.zeros((2, 3))) == [{}, {}]


def test_other_gallery_sizes_and_equal_similarities():
    for n_images, is_other in ((5, False), (21, True), (4, True)):
        assert unknown.described(ROW, n_images).endswith('calibrated for another number of images') == is_other
    for distance, is_unknown in ((0.5, False), (np.nextafter(np.float32(0.5), np.float32(1)), True)):
        assert unknown.answer(unknown.by_hand(0.875), distance)['unknown'] == is_unknown


def test_an_index_of_an_earlier_program_has_thresholds_for_several_sizes(tmp_path):
    changes.create(tmp_path / 'index', argparse.Namespace(source='run', id='x', settings={}, open_set=None))
    content = store.read(tmp_path / 'index')
    store.write(tmp_path / 'index', content | {'open_set': [ROW | {'gallery_size': 1000}, ROW]})
    assert retrieval.Index(tmp_path / 'index').open_set == ROW


def test_a_similarity_that_is_no_number_is_unknown():
    assert unknown.answer(unknown.by_hand(-9), np.nan)['unknown']


def test_a_threshold_that_no_similarity_reaches_is_refused_with_the_conversion(call, trained, photos, tmp_path):
    code, _, err = call('index', trained, photos, '--out', tmp_path / 'index', '--threshold', '1.2')
    assert code == 2 and '--threshold 1.2: a similarity is at most 1; the distance 1.2 is the similarity ' in err
    assert '1 - d^2 / 2 = 0.28' in err


def test_thresholds_of_another_network_are_not_taken(call, calibrated, photos, tmp_path):
    for values, sentence in (({'network_id': 'x'}, 'was calibrated for other weights or settings of the network'),
                             ({'network_id': None, 'own_similarity': '--pca 4'}, 'its threshold is for --pca 4'),
                             ({'reason': 'there are no validation classes'}, 'there are no validation classes')):
        run = calibrated(**values)
        code, out, err = call('index', run, photos / 'class_00', '--out', tmp_path / 'index')
        assert code == 0 and out.endswith('exact search\n') and sentence in err
    _, _, err = call('index', run, photos / 'class_00', '--out', tmp_path / 'index', '--threshold', 'none')
    assert 'Note: no query' not in err
    for text in ('{"thresholds": [{}]}', '[', '[]'):
        (run / 'open_set.json').write_text(text)
        code, _, err = call('index', run, photos, '--out', tmp_path / 'index')
        assert code == 2 and 'open_set.json: not readable' in err
