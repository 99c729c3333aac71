"""Tables of texts: in aligned columns, and in Markdown."""


def aligned(rows, left=(0,)):
    """
    Aligns the columns of rows of texts, equally long: columns with an index in `left` to the left, the others to the
    right.

    >>> print(aligned([['code', 'bytes'], ['float32', '512']]))
    code     bytes
    float32    512
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.ljust if index in left else str.rjust for index in range(len(widths))]
    return '\n'.join('  '.join(side(text, width) for side, text, width in zip(sides, row, widths, strict=True)).rstrip()
                     for row in rows)


def markdown(heads, rows):
    """
    Returns a Markdown table of texts and numbers; a | in a text is escaped.

    >>> print(markdown(['a', 'b'], [['1', 2]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [' | '.join(str(cell).replace('|', r'\|') for cell in row) for row in (heads, *rows)]
    return '\n'.join([f'| {lines[0]} |', '|---' * len(heads) + '|', *(f'| {line} |' for line in lines[1:])])
