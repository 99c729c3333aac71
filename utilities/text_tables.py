"""Tables of texts: in aligned columns, and in Markdown."""


def aligned(rows, left=(0,)):
    """
    Aligns the columns of rows of texts, equally long: those with an index in `left` to the left, others to the right.

    >>> print(aligned([['code', 'bytes'], ['float32', '512']]))
    code     bytes
    float32    512
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.ljust if index in left else str.rjust for index in range(len(widths))]
    lines = []
    for row in rows:
        cells = [side(text, width) for side, text, width in zip(sides, row, widths, strict=True)]
        lines.append('  '.join(cells).rstrip())
    return '\n'.join(lines)


def markdown(heads, rows):
    """
    Returns a Markdown table of texts and numbers; a | in a text is escaped.

    >>> print(markdown(['a', 'b'], [['1', 2]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    return '\n'.join([markdown_row(heads), '|---' * len(heads) + '|', *map(markdown_row, rows)])


def ends(numbers):
    """
    The smallest and the largest of some numbers as a text; '' for none.

    >>> ends([5, 3, 4]), ends([3, 3])
    ('3 to 5', '3')
    """
    numbers = sorted(numbers)
    return ' to '.join(map(str, dict.fromkeys(numbers[:1] + numbers[-1:])))


def markdown_row(cells):
    texts = [str(cell).replace('|', r'\|') for cell in cells]
    return f'| {" | ".join(texts)} |'
