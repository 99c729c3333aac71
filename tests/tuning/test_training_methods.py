"""Searches and ensembles with cascaded embeddings and with adversarial negatives."""
import math

import pytest

import Evaluate_Ensemble
import Hyperparameter_Search
from tests.helpers import rows_of
from tests.tuning.stub import table_of


@pytest.mark.parametrize('method, tuned', [
    (['--cascade', '1', '--cascade_fractions', '0.5'], ['loss_triplet_margin', '0.1,0.4']),
    (['--daml', '--daml_layers', '8'], ['daml_adv_weight', '1,50'])])
def test_a_search_and_the_ensemble_of_what_it_reproduces(method, tuned, flags, tmp_path):
    assert Hyperparameter_Search.main([*flags, *method, '--tune', *tuned, '--sampler', 'grid', '--n_epochs', '1',
                                       '--reproductions', '1']) == 0
    rows = table_of(tmp_path)
    assert {float(row[tuned[0]]) for row in rows} == {float(value) for value in tuned[1].split(',')}
    assert all(math.isfinite(float(row['map_at_r'])) for row in rows)
    folders = sorted((tmp_path / 'study' / 'reproductions').glob('*/folder/*_fold*_s*/'))
    assert len(folders) == 2
    assert Evaluate_Ensemble.main([*map(str, folders), '--save_path', str(tmp_path / 'E')]) == 0
    log, = (tmp_path / 'E').glob('*/*/log.csv')
    scores = {row['form']: float(row['test_map_at_r']) for row in rows_of(log.parent, ())
              if row['trained_status'] == 'trained'}
    assert scores.keys() == {'separated', 'concatenated'} and all(0 < score < 1 for score in scores.values())
