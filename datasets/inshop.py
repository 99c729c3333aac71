"""In-Shop Clothes Retrieval: 52,712 photos of 7,982 items, with queries and a gallery. Liu et al., CVPR 2016."""
from datasets.base import ImageTable, find, listed_rows

WHERE = '''inshop/                       or "In-shop Clothes Retrieval Benchmark/"
    list_eval_partition.txt   the list of its images, also in Eval/
    img/                      of Img/img.zip, also in Img/; or img_highres/
        WOMEN/Dresses/id_00000002/*.jpg
        ...
On request from https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html.'''
PUBLISHED = {'train': (25882, 3997), 'query': (14218, 3985), 'gallery': (12612, 3985)}       # images and items
ROOTS = ('inshop', 'in-shop', 'inshop/In-shop Clothes Retrieval Benchmark', 'In-shop Clothes Retrieval Benchmark')


def load(opt):
    lists = [f'{root}/{folder}list_eval_partition.txt' for root in ROOTS for folder in ('', 'Eval/')]
    partition = find(opt, 'inshop', lists, WHERE)
    root = partition.parent.parent if partition.parent.name == 'Eval' else partition.parent
    images = root / 'Img' if (root / 'Img').exists() else root
    rows = listed_rows(partition, 'image_name item_id evaluation_status', begins_with_count=True)
    place = 'img'
    if not (images / 'img').exists() and (images / 'img_highres').exists():
        place = 'img_highres'
        print(f'Note: {images}: the photos of img_highres are read, since there is no img')
    paths = [images / place / path.removeprefix('img/') for path, _, _ in rows]
    return ImageTable(paths, [item for _, item, _ in rows],
                      [part for _, _, part in rows],
                      [{item: '/'.join(path.split('/')[-4:-2]) for path, item, _ in rows}])      # WOMEN/Dresses
