"""
Writes docs/claims.md and the table of verdicts in README.md, from studies/claims.yaml and the rows of the claims' runs.

python -m studies.claims_page [--rows FILE] [--classes FILE] [--folds FILE ...] [--page FILE] [--readme FILE]
"""
import argparse
import math
import sys
from pathlib import Path

from studies import claims, class_values
from studies.answers import markdown_table
from utilities import errors
from utilities.errors import UserError
from utilities.files import require_writable, write_text

ROWS = Path(__file__).parent / 'rows'
WAITING = 'without runs'
CONVERGED = 0.5              # points
# units of effects that are not in points
UNITS = {'correlations': ' (100 × difference of correlations)', 'separated': ' pairs'}
RULES = '''\
- **confirmed**: the whole 95 % interval of the effect in MAP@R over seeds is on the claimed side of the margin (if
  methods are claimed to be equal, between −margin and +margin), and the corrected p is below 0.05.
- **refuted**: the whole interval is on the other side (for equality, outside the margins), and the corrected p is
  below 0.05. Where an improvement is claimed, *refuted* means that it is smaller than the margin, not that it is zero.
- **undecided**: otherwise.

The margins are ours, except for `dimension` and `samplers`, whose margin is the paper's. These two claims are about
each of several contrasts: they are confirmed if all contrasts are, and refuted if one is. A claim about an average over
losses is judged by the average alone. p is of the two-sided test against the margin, corrected by Holm's method over
the primary claims. R@1 and the intervals over classes do not enter the verdict, nor does convergence: a method is *not
converged* if MAP@R on validation classes changes by 0.5 points or more over the last third of the epochs.

Claims, contrasts, margins, seeds and search spaces were fixed in `studies/claims.yaml` and `studies/Claims_Searches.sh`
before the first run that counts. After the first runs, the wording was made more exact, and the statistics were mended:
equality is tested against the nearer margin, the halves may have different variances, and Holm's correction counts all
primary claims. The checks were added when most verdicts were known, before their own runs. Pilot runs with one seed
chose image size, learning rate and length. *Tuned*: each loss has 16 trials on two folds of the training classes, the
two best settings are trained at full length on both folds, and the better one is kept.

Each half of the classes is the test set once; an effect is the mean over the two halves, and n is the number of seeds
in both. Intervals are over seeds (Student's t). For `spread`, they are simulated from the standard errors of the means.
For `spectral_decay` and `map_at_r`, they are a bootstrap over methods without the variation between seeds, and n is the
number of methods. *Classes* is a bootstrap over the test classes, with the trained networks fixed; it does not include
the choice of training classes. No interval includes the variation between searches: every tuned setting comes from one
search. The check `search_seed` shows how much a second search changes the results. Differences are paired by seed only
between variants of one loss; otherwise the test is Welch's. Effects are in points of MAP@R and of R@1 where no other
unit is given. Claims cited from memory are marked *remembered*. Verdicts apply to these data sets and networks only,
not to the experiments of the papers.'''


def page_of(found, not_testable):
    """The text of the page. found: of claims.findings(); not_testable: of claims.load()."""
    primary, exploratory = ([one for one in found if one.claim.primary == wanted] for wanted in (True, False))
    words = [word_of(one) for one in primary]
    counts = [f'{words.count(word)} {word}' for word in
              ('confirmed', 'refuted', 'undecided', claims.INCOMPLETE, WAITING) if word in words]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(one.claim.protocol for one in found), start=1)}
    lines = ['# Claims of the papers', '', f'{len(primary)} claims: {", ".join(counts)}.', '', RULES, '']
    lines += table_of(primary, numbers)
    if exploratory:
        lines += ['', 'Exploratory comparisons and checks, without verdict:', '', *table_of(exploratory, numbers)]
    lines += ['', '## Protocols', '', *(f'{number}. {text}.' for text, number in numbers.items())]
    for one in found:
        lines += ['', *section(one)]
    lines += ['', '## Not testable here', '',
              *(f'- {entry["name"]} ({entry["paper"]}): {entry["reason"]}' for entry in not_testable)]
    return '\n'.join([*lines, ''])


def table_of(found, numbers):
    """A row per Finding. numbers: {text of the protocol: its number}."""
    return markdown_table(['claim', 'data and control', 'effect', 'claimed', 'verdict', 'command'], [
        [f'[{one.claim.name}](#{one.claim.name}): {one.claim.says} *{source_of(one.claim)}*',
         f'{one.claim.data}, [protocol {numbers[one.claim.protocol]}](#protocols); control: {one.claim.control}',
         '<br>'.join(effects_of(one)), margin_of(one.claim), verdict_of(one), f'`{one.claim.command}`']
        for one in found])


def with_verdicts(readme, found):
    """The text of the README with the table of the primary claims' verdicts in place of the table that it has."""
    heads = ['claim', 'paper', 'effect', 'claimed', 'verdict']
    table = markdown_table(heads, [
        [f'[{one.claim.title}](docs/claims.md#{one.claim.name})', one.claim.paper.split()[0], effect_of(one),
         margin_of(one.claim), word_of(one)] for one in found if one.claim.primary])
    before, start, rest = readme.partition(f'| {" | ".join(heads)} |\n')
    if not start:
        raise UserError(f'the README has no table with the heads {", ".join(heads)}')
    _, end, after = rest.partition('\n\n')
    return before + '\n'.join(table) + end + after


def effect_of(one):
    """The effect in one line, for the README; effects_of() has the whole."""
    estimates = list(filter(None, one.estimates.values()))
    if len(estimates) > 1:
        return f'{range_of(estimates)} ({len(estimates)} contrasts)'
    return text_of(estimates[0]) + UNITS.get(one.claim.effect, '') if estimates else ''


def source_of(claim):
    number = f'; its number: {claim.number}' if claim.number else ''
    return f'{claim.paper}, {claim.place}{number}{" (remembered)" if claim.is_remembered else ""}'


def effects_of(one):
    """Texts of the effect in MAP@R, over test classes, in R@1, and of n; or of their ranges over several contrasts."""
    estimates, beside = list(filter(None, one.estimates.values())), list(filter(None, one.beside.values()))
    if not estimates:
        return []
    n = min(estimate.n for estimate in estimates)
    if len(estimates) > 1:
        words = [claims.judged(estimate, one.claim.expects, one.claim.margin).word for estimate in estimates]
        counts = f'{words.count("refuted")} refuted, {words.count("confirmed")} confirmed'
        return [f'means of {len(words)} contrasts: MAP@R {range_of(estimates)}', f'R@1 {range_of(beside)}',
                *([counts] if one.claim.primary else []), f'n = {n}']
    if unit := UNITS.get(one.claim.effect):
        return [text_of(estimates[0]) + unit, f'n = {n}']
    classes = classes_of(estimates[0])
    return [f'MAP@R {text_of(estimates[0])}', *([f'classes {classes}'] if classes else []),
            *(f'R@1 {text_of(estimate)}' for estimate in beside), f'n = {n}']


def section(one):
    claim = one.claim
    unit = UNITS.get(claim.effect, ' point' if claim.margin == 1 else ' points')
    side = {'greater': 'above', 'at most': 'below', 'equal': 'within ±'}[claim.expects]
    what = 'Registered: confirmed' if claim.primary else 'Expected:'
    lines = [f'## {claim.name}', '', f'- {what} {side} {claim.margin:g}{unit}; at least {claim.seeds} seeds.']
    if one.lacking:
        lines.append(f'- Runs are missing, first of {one.lacking}.')
    elif one.n_units < claim.seeds:
        lines.append(f'- {one.n_units} of {claim.seeds} seeds so far.')
    if moving := {name: change for name, change in one.changes.items() if abs(change) >= CONVERGED}:
        names = ', '.join(f'{name} {change:+.1f}' for name, change in moving.items())
        lines.append(f'- Not converged: {names}.')
    elif one.changes:
        lines.append('- All methods converged.')
    contrasts = {name: (estimate, one.beside.get(name)) for name, estimate in one.estimates.items()}
    if len(rows := one.parts | contrasts) > 1:
        lines += ['', *markdown_table(['loss' if one.parts else 'contrast', 'MAP@R', 'classes', 'R@1', 'n'], [
            [name, text_of(estimate), classes_of(estimate), text_of(beside), getattr(estimate, 'n', '')]
            for name, (estimate, beside) in rows.items()])]
    elif rows:
        (name, (estimate, _)), = rows.items()
        lines.append(f'- Effect: {text_of(estimate)}{UNITS.get(claim.effect, " points of MAP@R")} ({name}).')
    return lines


def word_of(one):
    return WAITING if one.lacking else one.word


def margin_of(claim):
    """'> 1': where the effect lies if the claim holds."""
    return f'{dict(zip(claims.EXPECTS, (">", "<", "within ±"), strict=True))[claim.expects]} {claim.margin:g}'


def verdict_of(one):
    """The verdict with its p."""
    if one.lacking or math.isnan(one.p):
        return word_of(one)
    return f'{one.word}<br>{"p < 0.001" if one.p < 0.001 else f"p = {one.p:.3f}"}'


def text_of(estimate):
    """'+1.2 (0.4 to 2.0)'."""
    return f'{rounded(estimate.mean, "+")} ({span_of(estimate.interval())})' if estimate else ''


def rounded(value, sign=''):
    return f'{round(value, 1) + 0:{sign}.1f}'                                            # never -0.0


def classes_of(estimate):
    """'0.4 to 2.0', the interval over test classes."""
    found = estimate.interval_over_classes() if estimate else None
    return span_of(found) if found else ''


def span_of(interval):
    return 'no interval' if math.isnan(interval[0]) else ' to '.join(map(rounded, interval))


def range_of(estimates):
    means = [one.mean for one in estimates]
    return f'{rounded(min(means), "+")} to {rounded(max(means), "+")}'


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rows', type=Path, default=ROWS / 'claims.csv', help='rows of the runs, if there are any')
    parser.add_argument('--classes', type=Path, default=class_values.FILE, help='MAP@R per test class of the runs')
    parser.add_argument('--folds', type=Path, nargs='+', default=[ROWS / f'claims_folds_{half}.csv' for half in 'AB'],
                        help='rows of the ensembles of folds, a file per half')
    parser.add_argument('--page', type=Path, default=Path('docs/claims.md'), help='the page')
    parser.add_argument('--readme', type=Path, default=Path('README.md'), help='file with a table of verdicts')
    opt = parser.parse_args(arguments)
    require_writable(opt.page, '--page')
    require_writable(opt.readme, '--readme')
    known, not_testable = claims.load()
    classes = class_values.read(opt.classes) if opt.classes.exists() else {}
    results = claims.results_of(opt.rows, classes) if opt.rows.exists() else {}
    for file in filter(Path.exists, opt.folds):
        for method, of_units in claims.ensembles_of(file, classes).items():
            results.setdefault(method, {}).update(of_units)
    found = claims.findings(known, results)
    write_text(opt.page, page_of(found, not_testable))
    write_text(opt.readme, with_verdicts(opt.readme.read_text(encoding='utf-8'), found))
    print(opt.page, opt.readme, sep='\n')


if __name__ == '__main__':
    with errors.reported('studies.claims_page') as end:
        main()
    sys.exit(end.code)
