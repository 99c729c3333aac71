"""The records of an ensemble: what is read is what was written, or is refused."""
import numpy as np
import pandas
import pytest

from reports import ensemble_records
from utilities.errors import UserError


def test_records_are_read_as_they_were_written(tmp_path):
    values = np.random.default_rng(0).random(1000)
    log = [{'form': 'concatenated', 'trained_status': 'trained', 'dim': 8, 'test_map_at_r': value} for value in values]
    log.append({'form': 'separated', 'trained_status': 'trained', 'dim': 4, 'test_map_at_r': None})
    folds = [{'fold': 0, 'epoch': 3, 'test_map_at_r': 1.0}]
    folder = ensemble_records.write(tmp_path / 'records', {}, log, folds)
    for found, written in zip(ensemble_records.read(folder), (log, folds), strict=True):
        pandas.testing.assert_frame_equal(found, pandas.DataFrame(written), check_exact=True, check_dtype=False)


@pytest.mark.parametrize('text', [None, '', 'form,test_map_at_r\n', 'form,test_map_at_r\nconcatenated,cut\n'])
def test_damaged_records_are_refused(text, tmp_path):
    if text is not None:
        (tmp_path / 'log.csv').write_text(text)
    with pytest.raises(UserError, match='log.csv: missing or damaged; delete the folder'):
        ensemble_records.read(tmp_path)
