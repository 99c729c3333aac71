"""
Writes the tables of the study on photos into their places in docs/results.md and README.md, and the picture of density
against R@1, from the rows in studies/rows. The prose of the pages stands in the pages.
"""
import argparse
import sys
from pathlib import Path

from studies import pages, photos
from utilities import errors
from utilities.files import write_text

ROOT = Path(__file__).parents[1]
PAGES = ('docs/results.md', 'README.md')
PICTURE = 'docs/pictures/photos_density.png'


def main(root=ROOT):
    found = {tier: photos.read(tier) for tier in photos.TIERS}
    made = photos.tables(found)
    for name in PAGES:
        write_text(root / name, pages.fill((root / name).read_text(encoding='utf-8'), made))
        print(name)
    photos.draw_density(found['finetuned'], root / PICTURE)
    print(root / PICTURE)


if __name__ == '__main__':
    argparse.ArgumentParser('python -m studies', description=__doc__).parse_args()
    sys.exit(errors.exit_code('studies', main))
