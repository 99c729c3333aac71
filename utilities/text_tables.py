"""Tables of texts: in aligned columns, and in Markdown."""


def aligned(rows, n_left=1):
    """
    Rows of texts, equally long -> lines with aligned columns, the first n_left to the left, the others to the right.

    >>> print(aligned([['code', 'bytes'], ['float32', '512']]))
    code     bytes
    float32    512
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return '\n'.join('  '.join([*map(str.ljust, row[:n_left], widths), *map(str.rjust, row[n_left:], widths[n_left:])])
                     .rstrip() for row in rows)


def markdown(heads, rows):
    """
    A Markdown table of texts; a | in a text is escaped.

    >>> print(markdown(['a', 'b'], [['1', '2']]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [' | '.join(text.replace('|', r'\|') for text in row) for row in (heads, *rows)]
    return '\n'.join([f'| {lines[0]} |', '|---' * len(heads) + '|', *(f'| {line} |' for line in lines[1:])])
