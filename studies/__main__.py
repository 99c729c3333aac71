"""
Writes the tables of the studies into their places in docs/results.md, studies/tables.md and
README.md, from the rows in studies/rows. The prose of the pages stands in the pages.

python -m studies
"""
import re
import sys
from pathlib import Path

from studies import methods, pages, questions
from studies.pages import p_text, rounded, span, with_interval
from utilities import errors
from utilities.files import write_text
from utilities.text_tables import markdown

ROOT = Path(__file__).parents[1]
RESULTS = 'docs/results.md'
PAGES = (RESULTS, 'studies/tables.md', 'README.md')
QUESTION = re.compile(r'^### (?P<title>[^\n]+)\n(?:(?!\n##).)*?<!-- table question (?P<name>\w+) -->', re.M | re.S)
ASKED = {'greater': '> {:g}', 'at most': '< {:g}', 'equal': 'within ± {:g}'}
UNITS = {'separated': ' pairs'}                                            # units of effects that are not in points
SETTING = re.compile(r'(_tuned|_rho|_gamma|_512|_four_concatenated)?(_longer|_again)?(?= |$)')      # ends of methods
LONGER, SECOND_SEARCH = '_longer', 'search_seed'                           # checks in claims.yaml, or ends of them


def asked(question):
    return ASKED[question.expects].format(question.margin) + UNITS.get(question.effect, '')


def label(name):
    """Returns the name of a contrast without what its methods have in common: 'triplet' for 'triplet_tuned_longer'."""
    return SETTING.sub('', name)


def digits(finding):
    return 2 if finding.question.effect == 'correlations' else 1


def shown(finding, estimate):
    return with_interval(estimate, digits(finding))


def single_values(finding, names):
    """Returns the effects of several contrasts, each with what its interval says."""
    texts = []
    for name in names:
        value = rounded(finding.contrasts[name][0].mean, '+', digits(finding))
        word = finding.single_answer(name)
        texts.append(f'{label(name)} {value} ({word})' if word else f'{label(name)} {value}')
    return ', '.join(texts)


def disagree(finding, names):
    """Returns whether the effects of several contrasts differ in sign or in what their intervals say."""
    signs = {rounded(finding.contrasts[name][0].mean, '+')[0] for name in names}
    return len(signs) > 1 or len(set(map(finding.single_answer, names))) > 1


def effect_text(finding):
    """Returns the effect that the answer is from, and the other contrasts if they disagree."""
    if finding.question.effect == 'each':
        return '; '.join(f'{label(name)} {shown(finding, one)}: {finding.single_answer(name)}'
                         for name, (one, _) in finding.contrasts.items())
    name, = finding.decisive
    others = [one for one in finding.contrasts if one != name]
    value = shown(finding, finding.contrasts[name][0])
    text = f'{value} on average over {len(others)} losses' if name == questions.MEAN else f'{label(name)}: {value}'
    return f'{text}; {single_values(finding, others)}' if disagree(finding, others) else text


def short_effect(finding):
    """Returns the effect that the answer is from, without other contrasts; of several, the largest."""
    if finding.question.effect == 'each':
        name = max(finding.decisive, key=lambda name: abs(finding.contrasts[name][0].mean))
        return f'{label(name)} {shown(finding, finding.contrasts[name][0])}'
    name, = finding.decisive
    return shown(finding, finding.contrasts[name][0]) + (' on average' if name == questions.MEAN else '')


def answer_text(finding):
    """Returns the answer, and why if it is open."""
    if finding.answer != 'open':
        return finding.answer
    if finding.by_interval == 'open':
        return f'open (interval contains {finding.question.margin:g})'
    return 'open (p > 0.05)'


def short_answer(finding, longer):
    """Returns the answer, and that of a check with twice the epochs if it is another. longer: as of longer_text."""
    if longer is None or longer.answer == finding.answer:
        return finding.answer
    return f'{finding.answer}; {longer.answer} with 48 epochs'


def seeds_text(finding):
    few, many = min(finding.seeds), max(finding.seeds)
    return f'{few} seeds' if few == many else f'{few} to {many} seeds'


def n_text(finding):
    """
    Returns the number of seeds, or of methods if these are what the interval is over; and the number of seeds that were
    registered, if there are more.
    """
    text = seeds_text(finding)
    if finding.question.effect in ('correlations', 'separated'):
        text = f'{finding.contrasts[finding.decisive[0]][0].n} methods, {text} each'
    registered = finding.question.seeds
    return f'{text} ({registered} registered)' if max(finding.seeds) > registered else text


def longer_text(finding):
    """Returns what a check with twice the epochs finds. finding: its Finding, or None if there is none."""
    return f'{answer_text(finding)}, {effect_text(finding)}' if finding else 'not run'


def question_text(finding, longer):
    """Returns the table of a question's contrasts, and n, methods that still change, its check, and its command."""
    rows = [(name, shown(finding, one), span(one.interval_over_classes()), shown(finding, beside),
             finding.single_answer(name)) for name, (one, beside) in finding.contrasts.items()]
    heads = ['contrast', 'MAP@R', 'over test classes', 'R@1', f'{asked(finding.question)}?']
    filled = [place for place in range(len(heads)) if any(row[place] for row in rows)]
    table = markdown([heads[place] for place in filled], [[row[place] for place in filled] for row in rows])
    facts = [n_text(finding)]
    if finding.n_methods:
        facts.append(f'{finding.changing} of {finding.n_methods} methods still change at the end')
    facts.append(f'48 epochs: {longer_text(longer)}')
    return f'{table}\n\n{". ".join(facts)}. `{finding.question.command}`'


def check_table(found):
    """Returns the table of the contrasts of several questions, with the commands of their runs."""
    rows = [[name, asked(finding.question), shown(finding, one), shown(finding, beside), n_text(finding),
             finding.single_answer(name)] for finding in found for name, (one, beside) in finding.contrasts.items()]
    commands = dict.fromkeys(f'`{finding.question.command}`' for finding in found)
    return f'{markdown(["contrast", "yes if", "MAP@R", "R@1", "n", "answer"], rows)}\n\n{"; ".join(commands)}'


def second_search(finding):
    """Returns the sentence on how much the settings of a second search change the results."""
    moves = ' and '.join(f'by {shown(finding, one)} points for {label(name)}'
                         for name, (one, _) in finding.contrasts.items())
    return (f'With the settings of a second search, with another seed, MAP@R changes {moves} ({n_text(finding)}). '
            f'No interval on this page includes this variation.')


def link(title, page):
    """Returns a link to the section `title` of a page."""
    anchor = re.sub(r'[^\w -]', '', title.lower()).replace(' ', '-')
    return f'[{title}]({page}#{anchor})'


def tables(titles):
    """Returns {name: text} of all tables. titles: {name of a question: its heading}."""
    found = questions.findings(questions.load(), questions.read())
    primary = [one for one in found if one.question.primary]
    checks = {one.question.name: one for one in found if not one.question.primary}
    answers = []
    short = []
    of_questions = {}
    for one in primary:
        title = titles[one.question.name]
        longer = checks.get(one.question.name + LONGER)
        bound = asked(one.question)
        p = p_text(one.p)
        answers.append([link(title, ''), bound, effect_text(one), p, n_text(one), answer_text(one),
                        longer_text(longer)])
        short.append([link(title, RESULTS), bound, short_effect(one), p, short_answer(one, longer)])
        of_questions[f'question {one.question.name}'] = question_text(one, longer)
    heads = ['question', 'yes if', 'effect', 'p']
    study = methods.read()
    return of_questions | {
        'answers': markdown([*heads, 'n', 'answer', 'with 48 epochs'], answers),
        'answers in short': markdown([*heads, 'answer'], short),
        'checks': check_table(checks.values()), 'second search': second_search(checks[SECOND_SEARCH]),
        'methods': methods.table(study), 'origins': methods.origins(study),
        'tuned on folds': methods.tuned_table(study)}


def main(root=ROOT):
    page = (root / RESULTS).read_text(encoding='utf-8')
    made = tables({match['name']: match['title'] for match in QUESTION.finditer(page)})
    for name in PAGES:
        write_text(root / name, pages.fill((root / name).read_text(encoding='utf-8'), made))
        print(name)


if __name__ == '__main__':
    with errors.reported('studies') as end:
        main()
    sys.exit(end.code)
