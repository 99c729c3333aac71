"""The places of a page that a program fills, `<!-- table NAME -->` to `<!-- end -->`; estimates as texts."""
import math
import re

from utilities.errors import UserError

PLACE = re.compile(r'<!-- table (?P<name>[^\n]+?) -->\n.*?<!-- end -->', re.DOTALL)


def fill(text, tables):
    """Returns the text of a page with these tables, {name: text}, in its places. Raises UserError for other names."""
    def filled(place):
        if place['name'] not in tables:
            raise UserError(f'there is no table {place["name"]}; the tables are {", ".join(tables)}')
        return f'<!-- table {place["name"]} -->\n\n{tables[place["name"]]}\n\n<!-- end -->'

    return PLACE.sub(filled, text)


def rounded(value, sign='', digits=1):
    return f'{round(value, digits) + 0:{sign}.{digits}f}'                                # + 0 turns -0.0 into 0.0


def with_interval(estimate, digits=1):
    """Returns '+1.2 (0.4 to 2.0)'; '' for None."""
    return f'{rounded(estimate.mean, "+", digits)} ({span(estimate[1:], digits)})' if estimate else ''


def span(interval, digits=1):
    """Returns '0.4 to 2.0'; '' for None."""
    if interval is None:
        return ''
    if math.isnan(interval[0]):
        return 'no interval'
    return ' to '.join(rounded(end, '', digits) for end in interval)
