"""The settings that pass from the searches on frozen features to the runs."""
import pytest

from studies import settings
from utilities.errors import UserError

HEAD = 'trial,state,map_at_r,best_epochs,loss_triplet_margin,lr,seconds,reason'


@pytest.fixture
def studies(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, 'FILE', tmp_path / 'settings' / 'frozen.txt')
    return tmp_path / 'Studies'


def search(studies, name, lines):
    place = studies / name
    place.mkdir(parents=True, exist_ok=True)
    (place / 'trials.csv').write_text('\n'.join([HEAD, *lines, '']))


def trials(best, n=10):
    """Lines of n trials. The third is pruned although it has the highest score."""
    scores = dict.fromkeys(range(n), 0.3) | {best: 0.4, 3: 0.9}
    return [f'trial_{i},{"pruned" if i == 3 else "complete"},{scores[i]},15 15,0.{i},0.001,9,' for i in range(n)]


def test_the_best_finished_trial_of_each_finished_search(studies):
    search(studies, 'Frozen_birds_SNR_Contrastive', trials(4))
    search(studies, 'Frozen_cars_Triplet', trials(5, 9))                  # nine of ten trials
    settings.main(['--studies', str(studies)])
    assert settings.FILE.read_text() == 'birds SNR_Contrastive --loss_triplet_margin=0.4 --lr=0.001\n'


def test_settings_of_other_searches_stay(studies):
    search(studies, 'Frozen_birds_Triplet', trials(4))
    settings.main(['--studies', str(studies)])
    (studies / 'Frozen_birds_Triplet' / 'trials.csv').unlink()
    search(studies, 'Frozen_cars_Triplet', trials(6))
    settings.main(['--studies', str(studies)])
    assert settings.read(settings.FILE) == {('birds', 'Triplet'): ['--loss_triplet_margin=0.4', '--lr=0.001'],
                                            ('cars', 'Triplet'): ['--loss_triplet_margin=0.6', '--lr=0.001']}


def test_a_folder_without_searches_is_refused(studies):
    with pytest.raises(UserError, match='no searches of studies/Frozen_Searches.sh'):
        settings.main(['--studies', str(studies)])
