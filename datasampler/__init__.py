"""Batch samplers: they decide which images form a training batch."""
from datasampler import (
    balanced_sampler,
    class_random_sampler,
    d2_coreset_sampler,
    disthist_batchmatch_sampler,
    fid_batchmatch_sampler,
    full_random_sampler,
    greedy_coreset_sampler,
    hierarchical_sampler,
    image_random_sampler,
)
from datasampler.storage import PublicSampler, Storage
from flags.namespace import changed
from utilities.errors import UserError, choose, named_flags, undeclared_flags

SAMPLERS = {
    'class_random': class_random_sampler,
    'full_random': full_random_sampler,
    'image_random': image_random_sampler,
    'balanced': balanced_sampler,
    'hierarchical': hierarchical_sampler,
    'greedy_coreset': greedy_coreset_sampler,
    'd2_coreset': d2_coreset_sampler,
    'fid_batchmatch': fid_batchmatch_sampler,
    'disthist_batchmatch': disthist_batchmatch_sampler,
}
BATCH = ('bs', 'samples_per_class')          # the flags of the batch size


def chosen_later(opt):
    """The flags whose values choose_batch() may change: none if one is given or taken from a run."""
    return () if opt.resume or opt.reproduce or set(BATCH) & set(opt.given) else BATCH


def distinct(opt):
    """
    What never repeats in a batch of --data_sampler: 'classes' (there is one group of --samples_per_class images per
    class), 'groups' (there may be several of a class), 'images', or None.
    """
    return getattr(choose(SAMPLERS, opt.data_sampler, '--data_sampler'), 'DISTINCT', None)


def check(opt):
    """Raises UserError for a batch that --views or --unsupervised does not allow."""
    if opt.bs % opt.views:
        raise UserError(f'--bs {opt.bs} is not divisible by --views {opt.views}, the number of times that each image '
                        'is in its batch')
    if opt.unsupervised and opt.samples_per_class > 1:
        raise UserError(f'--samples_per_class {opt.samples_per_class}: with --unsupervised, a class has one image; '
                        'leave the flag out, and give --views to have each image in its batch several times')


def choose_batch(opt, images):
    """
    Shrinks the default --bs and --samples_per_class if there are too few training classes or images for them: sets
    opt.bs and opt.samples_per_class to what the training images allow, and prints it.

    A sampler that does not repeat classes gets the largest batch up to the default --bs, with as few images per class
    as this allows, and at most as many as half of the classes have. A sampler that does not repeat images gets at most
    all images, and so does either with --unsupervised. Each image counts --views times.
    """
    if not chosen_later(opt):
        return
    n_images = len(images.image_list)
    sizes = sorted(map(len, images.image_dict.values()))
    before = opt.bs, opt.samples_per_class
    most_images = opt.bs // opt.views
    if distinct(opt) == 'images' or distinct(opt) == 'classes' and opt.unsupervised:
        opt.bs = min(most_images, n_images) * opt.views
    elif distinct(opt) == 'classes' and 2 <= len(sizes) < most_images // opt.samples_per_class:
        most = max(2, min(sizes[len(sizes) // 2], most_images // 2))
        opt.samples_per_class = max(range(2, most + 1), key=lambda n: min(len(sizes), most_images // n) * n)
        opt.bs = min(len(sizes), most_images // opt.samples_per_class) * opt.samples_per_class * opt.views
    if (opt.bs, opt.samples_per_class) != before:
        print(f'Too few training images ({n_images} of {len(sizes)} classes) for the default batch of --bs {before[0]} '
              f'--samples_per_class {before[1]}; using --bs {opt.bs} --samples_per_class {opt.samples_per_class}')


@undeclared_flags()
def select(opt, images, criterion=None):
    """
    The sampler --data_sampler over the training images; with --views, its batches have --bs / --views different images.
    Raises UserError if the flags and the images do not fit.
    """
    module = choose(SAMPLERS, opt.data_sampler, '--data_sampler')
    has_own_storage = hasattr(module.Sampler, 'create_storage')          # as samplers of the public code
    required = []
    if getattr(module, 'REQUIRES_STORAGE', False) and not has_own_storage:
        required.append(Storage(opt, len(images.image_list)))
    if getattr(module, 'REQUIRES_HIERARCHY', False):
        required.append(images.superclasses)
    if getattr(module, 'REQUIRES_CRITERION', False):
        required.append(criterion)
    of_images = changed(opt, bs=opt.bs // opt.views)
    try:
        with named_flags():
            sampler = module.Sampler(of_images, images.image_dict, images.image_list, *required)
    except UserError as error:
        if opt.views == 1 or '--bs' not in str(error):
            raise
        raise UserError(f'--views {opt.views}: of --bs {opt.bs}, the sampler chooses {of_images.bs} images, which '
                        f'are its --bs: {error}') from None
    if hasattr(sampler, 'set_epoch') and not hasattr(sampler, 'start_epoch'):
        raise UserError(f'--data_sampler {opt.data_sampler}: its method set_epoch is never called; name it start_epoch')
    if has_own_storage and getattr(sampler, 'requires_storage', True):
        return PublicSampler(opt, sampler, images.image_list)
    return sampler
