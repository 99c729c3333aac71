"""Reads what is recorded and what is printed."""
import shutil
import statistics
import subprocess

import pytest

from tests.helpers import csv_rows, table_rows


def column_of(folder, name):
    return [float(row[name]) for row in csv_rows(folder / 'log.csv')]


def cells(text):
    """A Markdown table -> {method: [cell, ...]}"""
    return {row[0]: row[1:] for row in table_rows(text)}


def cells_on(dataset, text):
    """A Markdown table of several data sets -> {method: [cell, ...]} of the rows of one, by its title."""
    lines = [line.removeprefix(f'| {dataset} ') for line in text.splitlines()]
    return cells('\n'.join(['|', '|', *(line for line, whole in zip(lines, text.splitlines(), strict=True)
                                       if line != whole)]))


def expected(values, percent):
    scale, digits = (100, 1) if percent else (1, 3)
    return f'{scale * statistics.mean(values):.{digits}f} ± {scale * statistics.stdev(values):.{digits}f}'


def compile_latex(latex, folder, start='\\documentclass{article}\\usepackage{booktabs}'):
    """What pdflatex prints about a document with this table, which it must accept."""
    if shutil.which('pdflatex') is None:
        pytest.skip('pdflatex is not installed')
    (folder / 'd.tex').write_text(f'{start}\\begin{{document}}\n{latex}\\end{{document}}\n')
    done = subprocess.run(['pdflatex', '-interaction=nonstopmode', '-halt-on-error', 'd.tex'], cwd=folder,
                          capture_output=True, text=True, errors='replace')
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout
