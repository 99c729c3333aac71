"""Reads what is recorded and what is printed."""
import csv
import statistics


def column_of(folder, name):
    with open(folder / 'log.csv', newline='') as file:
        return [float(row[name]) for row in csv.DictReader(file)]


def cells(text):
    """A Markdown table -> {method: [cell, ...]}"""
    rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in text.splitlines() if line.startswith('|')]
    return {row[0]: row[1:] for row in rows[2:]}


def expected(values, percent):
    scale, digits = (100, 1) if percent else (1, 3)
    return f'{scale * statistics.mean(values):.{digits}f} ± {scale * statistics.stdev(values):.{digits}f}'
