"""
The claims of three papers, registered in claims.yaml before the runs: effects, intervals and verdicts.

A run of studies/Claims_Runs.sh has the group Claims_<data>_<half>_<method>: half A tests the second half of the
classes and trains on the first, half B the reverse. A unit is a half with a seed.
"""
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from records.reading import Run
from reports import final_rows, significance
from studies.effects import EFFECTS, LEVEL, MAP, RECALL, VALIDATION
from utilities.errors import UserError
from utilities.files import read_csv

FILE = Path(__file__).parent / 'claims.yaml'
GROUP = re.compile(r'Claims_(?P<data>[A-Za-z0-9]+)_(?P<half>[AB])_(?P<method>.+)')
TEXTS = ('name', 'title', 'paper', 'place', 'says', 'data', 'protocol', 'control', 'command')
KEYS = {*TEXTS, 'number', 'is_remembered', 'primary', 'effect', 'expects', 'margin', 'seeds', 'methods'}
EXPECTS = ('greater', 'at most', 'equal')
CONCATENATED, INCOMPLETE = 'concatenated_', 'incomplete'
N_CLASS_DRAWS = 2_000                            # bootstrap samples of the test classes


@dataclass
class Claim:
    """An entry of claims.yaml; docs/study.md explains its keys."""
    name: str
    title: str
    paper: str
    place: str
    says: str
    data: str
    protocol: str
    control: str
    command: str
    number: str | None
    is_remembered: bool
    primary: bool
    effect: str
    expects: str
    margin: float
    seeds: int
    methods: dict


def load(file=FILE):
    """
    The Claims of a file such as claims.yaml, and its entries `not_testable`. Raises UserError, naming the claim, where
    an entry is wrong.
    """
    content, claims = yaml.safe_load(Path(file).read_text(encoding='utf-8')), []
    for place, entry in enumerate(content['claims'], start=1):
        where = f'{file}, claim {place}'
        if not isinstance(entry, dict) or entry.keys() != KEYS:
            wrong = {*(entry if isinstance(entry, dict) else ())} ^ KEYS
            raise UserError(f'{where}: expected the keys {", ".join(sorted(KEYS))}; wrong or missing: '
                            f'{", ".join(sorted(wrong))}')
        for key, known in (('effect', EFFECTS), ('expects', EXPECTS)):
            if entry[key] not in known:
                raise UserError(f'{where}: {key} {entry[key]}: expected {", ".join(known)}')
        if not entry['margin'] >= 0 or not 2 <= entry['seeds'] <= 12:
            raise UserError(f'{where}: expected a margin of at least 0 and 2 to 12 seeds')
        claims.append(Claim(**entry))
    names = [claim.name for claim in claims]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise UserError(f'{file}: two claims have the name {", ".join(sorted(repeated))}')
    for entry in content['not_testable']:
        if entry.keys() != {'name', 'paper', 'reason'}:      # YAML cuts an unquoted sentence at its first comma
            raise UserError(f'{file}, not_testable {entry.get("name")}: expected the keys name, paper and reason')
    return claims, content['not_testable']


class Result(NamedTuple):
    """resampled: MAP@R of the last epoch on bootstrap samples of the test classes, [N_CLASS_DRAWS] or []."""
    run: Run
    resampled: np.ndarray = np.array([])


def resampled(half, classes, sizes):
    """
    The mean over queries on bootstrap samples of the test classes, [N_CLASS_DRAWS]. classes, sizes: the mean of each
    class and its number of queries, [C]. All runs of a half have the same samples: their differences are paired.
    """
    counts = samples_of(half, len(sizes)) * sizes
    return counts @ classes / counts.sum(axis=1)


@functools.cache
def samples_of(half, n_classes):
    """How often each bootstrap sample has each class: [N_CLASS_DRAWS, n_classes]."""
    return np.random.default_rng(ord(half)).multinomial(n_classes, np.full(n_classes, 1 / n_classes), N_CLASS_DRAWS)


def results_of(file, classes=None):
    """
    {(data, method): {(half, seed): Result}} of the rows of the claims' runs. classes: of class_values.read(). Raises
    UserError for other groups.
    """
    found = {}
    for run in final_rows.read(file):
        if not (match := GROUP.fullmatch(run.group)):
            raise UserError(f'{file}: the group {run.group} is not of studies/Claims_Runs.sh')
        found.setdefault((match['data'], match['method']), {})[match['half'], run.seed] = (
            result_of(run, match['half'], (classes or {}).get((run.group, run.seed))))
    return found


def result_of(run, half, classes):
    """The Result of a run. classes: None, or (MAP@R per class [C], number of queries per class [C])."""
    return Result(run, resampled(half, *classes)) if classes else Result(run)


def ensembles_of(file, classes=None):
    """
    As results_of(), of the rows that Evaluate_Ensemble.py --rows wrote: the method <method>_concatenated has the values
    of the concatenated networks of the folds.
    """
    found = {}
    for number, line in enumerate(read_csv(Path(file)), start=2):
        if not (match := GROUP.fullmatch(line.get('group', ''))):
            raise UserError(f'{file}, line {number}: its group is not of studies/Claims_Runs.sh')
        row = {'epoch': 0} | {name.removeprefix(CONCATENATED): float(value) for name, value in line.items()
                              if name.startswith(CONCATENATED) and value}
        run = Run(line['group'], f'{file}, line {number}', {}, [row], test=line.get(final_rows.TEST) or None)
        found.setdefault((match['data'], f'{match["method"]}_concatenated'), {})[match['half'], int(line['seed'])] = (
            result_of(run, match['half'], (classes or {}).get((line['group'], int(line['seed'])))))
    return found


class Methods:
    """The results of a Claim's methods, of results_of(). Missing runs raise NoRuns. used: {method: {unit: Result}}."""
    def __init__(self, claim, results):
        self.claim, self.results, self.used = claim, results, {}

    def names(self, part):
        """The names of the methods of claim.methods[part], or of the first of each pair."""
        return [name if isinstance(name, str) else name[0] for name in self.claim.methods[part]]

    def __call__(self, part):
        return [self.found(name) if isinstance(name, str) else tuple(map(self.found, name))
                for name in self.claim.methods[part]]

    def is_fixed(self, name):
        """Whether the method has no randomness, so that one run per half is all."""
        return name in self.claim.methods.get('fixed', ())

    def halves(self):
        """The halves that all methods of `of` and `against` have."""
        return set.intersection(*({half for half, _ in self.found(name)}
                                  for part in ('of', 'against') for name in self.claim.methods.get(part, ())))

    def found(self, name):
        results = self.results.get((self.claim.methods['data'], name))
        if not results:
            raise NoRuns(name)
        self.used[name] = results
        return results


class NoRuns(Exception):
    """A method of a claim has no runs yet."""


class Verdict(NamedTuple):
    """word: 'confirmed', 'refuted' or 'undecided'; p: of the test against the margin, not corrected."""
    word: str
    p: float


def judged(estimate, expects, margin):
    """
    The Verdict on one Estimate. greater: confirmed if the interval lies above the margin, refuted if below it. at most:
    the reverse. equal: confirmed if the interval lies within ± margin (two one-sided tests), refuted if it lies
    outside. p is of the test against the margin, or against the nearer one.
    """
    low, high = estimate.interval()
    above, below = estimate.p(margin), estimate.p(-margin)
    if expects == 'equal':
        word = ('confirmed' if -margin < low and high < margin else 'refuted' if low > margin or high < -margin
                else 'undecided')
        return Verdict(word, max(above, below))
    words = ('confirmed', 'refuted') if expects == 'greater' else ('refuted', 'confirmed')
    return Verdict(words[0] if low > margin else words[1] if high < margin else 'undecided', above)


def of_all(verdicts):
    """The Verdict on a claim about each of several contrasts: refuted if one of them is, confirmed if all are."""
    refuted = [verdict.p for verdict in verdicts if verdict.word == 'refuted']
    if refuted:
        return Verdict('refuted', min(1.0, min(refuted) * len(verdicts)))
    word = 'confirmed' if all(verdict.word == 'confirmed' for verdict in verdicts) else 'undecided'
    return Verdict(word, max(verdict.p for verdict in verdicts))


class Finding(NamedTuple):
    """
    What the runs say of a Claim. estimates: {contrast: Estimate} in MAP@R; beside: the same in R@1, {} where it is not
    a metric of the claim; parts: (Estimate in MAP@R, in R@1) of each pair, of which the effect is the mean, or {}.
    word: the verdict, or INCOMPLETE; p: corrected by Holm's method over the primary claims. lacking: the method
    that has no runs, or None. n_units: number of seeds, over both halves, of the method with the fewest. changes:
    {method: mean change of MAP@R on validation classes over the last third of the epochs, in points}.
    """
    claim: Claim
    estimates: dict
    beside: dict
    word: str
    p: float
    lacking: str | None
    n_units: int = 0
    changes: dict = {}
    parts: dict = {}


def findings(claims, results):
    """A Finding for each Claim. results: of results_of()."""
    known = {}
    for claim in claims:
        methods = Methods(claim, results)
        try:
            estimates = EFFECTS[claim.effect](methods, MAP)
            beside = {} if claim.effect == 'separated' else EFFECTS[claim.effect](methods, RECALL)
        except NoRuns as missing:
            known[claim.name] = {}, {}, None, str(missing), {}, {}
            continue
        verdict, parts = None, {}
        if claim.effect == 'paired' and len(claim.methods['pairs']) > 1:
            each = [EFFECTS['each'](methods, name) for name in (MAP, RECALL)]
            parts = {name: (each[0][name], each[1][name]) for name in each[0]}
        if all(estimates.values()):
            verdict = of_all([judged(one, claim.expects, claim.margin) for one in estimates.values()])
        used = {name: found for name, found in methods.used.items() if not methods.is_fixed(name)}
        known[claim.name] = estimates, beside, verdict, None, used, parts
    primary = [claim.name for claim in claims if claim.primary]
    p_values = [known[name][2].p if known[name][2] else 1.0 for name in primary]     # their number is always the same
    corrected = dict(zip(primary, significance.holm(p_values), strict=True))
    found = []
    for claim in claims:
        estimates, beside, verdict, lacking, used, parts = known[claim.name]
        p, n_units = corrected.get(claim.name, np.nan), min(map(len, used.values()), default=0)
        word = 'undecided' if claim.primary else 'no verdict'
        if claim.primary and (not verdict or n_units < claim.seeds):
            word = INCOMPLETE
        elif claim.primary and p < 1 - LEVEL:
            word = verdict.word                            # the interval and the corrected test agree
        found.append(Finding(claim, estimates, beside, word, p, lacking, n_units, changes_of(used), parts))
    return found


def changes_of(used):
    """{method: mean change in points of MAP@R on validation classes over the last third of the epochs}, if known."""
    changes = {}
    for name, results in used.items():
        each = []
        for run, _ in results.values():
            rows = [row for row in run.rows if VALIDATION in row]
            before = [row for row in rows if 3 * row['epoch'] <= 2 * rows[-1]['epoch']]
            each += [100 * (rows[-1][VALIDATION] - before[-1][VALIDATION])] if before else []
        if each:
            changes[name] = float(np.mean(each))
    return changes
