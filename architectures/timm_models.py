"""
Any network of timm by name, as in --arch timm:vit_small_patch16_224_normalize; or from a repository at Hugging Face
(timm:hf-hub:OWNER/NAME) or a folder (timm:local-dir:FOLDER) with config.json and weights, as timm writes them.
"""
import json
import sys
from pathlib import Path

from architectures import weights
from architectures.embedding_network import Backbone
from utilities.errors import UserError
from utilities.image_size import in_evaluation, sides, written

NAMES = 'timm.list_models()'
SOURCES = ('hf-hub:', 'local-dir:')
FILES = ('model.safetensors', 'pytorch_model.bin')                          # the weights in a folder, by priority


def library():
    try:
        import timm
    except ImportError as error:
        raise UserError(f'--arch: timm:NAME needs timm ({error}): pip install timm') from None
    return timm


def names():
    """Names of the networks, then names with a set of weights, as in resnet50.a1_in1k."""
    timm = library()
    return timm.list_models() + timm.list_models(include_tags=True)


def maps(network, images):
    """The last maps [B, C, H, W], or the tokens [B, T, C] behind the network's last norm."""
    found = network.forward_features(images)
    if getattr(network, 'output_fmt', None) == 'NHWC':
        return found.permute(0, 3, 1, 2)
    # some ViTs that pool by a mean have their last norm after the pooling
    return network.fc_norm(found) if getattr(network, 'fc_norm', None) else found


def name_in_timm(opt, name):
    """The name of the network; for one of SOURCES, the `architecture` in its config.json, which may be downloaded."""
    if not name.startswith(SOURCES):
        return name
    source, _, place = name.partition(':')
    try:
        if source == 'hf-hub':
            return library().models.load_model_config_from_hf(place)[1]
        return json.loads((Path(place) / 'config.json').read_text(encoding='utf-8'))['architecture']
    except KeyError:
        raise UserError(f'--arch {opt.arch}: its config.json names no network of timm (architecture); for weights of '
                        'another library, give --arch timm:NAME --weights FILE') from None
    except Exception as error:  # the hub's client reports a missing repository or connection in its own ways
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        hint = ('download the repository on a machine with internet (hf download OWNER/NAME --local-dir FOLDER), and '
                'give --arch timm:local-dir:FOLDER' if source == 'hf-hub' else
                'give a folder as `hf download OWNER/NAME --local-dir FOLDER` makes it')
        raise UserError(f'--arch {opt.arch}: its config.json could not be read: {first_line}\n{hint}') from None


def read_state_dict(name):
    """The state dict of one of SOURCES, read safely. Raises UserError if a folder has no weights."""
    source, _, place = name.partition(':')
    if source == 'hf-hub':
        return library().models.load_state_dict_from_hf(place, weights_only=True)
    file = next((Path(place) / file for file in FILES if (Path(place) / file).exists()), None)
    if file is None:
        raise UserError(f'--arch timm:{name}: there is no {" or ".join(FILES)} in this folder; give --weights FILE')
    return weights.read_state_dict(file, flag=f'--arch timm:{name}')[0]


def converted(network, state):
    """
    Weights of the same network in another format -> weights with the network's names, and with position embeddings
    that timm has resized to its grid of patches. Weights of another patch size are not resized, since they belong to
    another network.
    """
    convert = getattr(sys.modules[type(network).__module__], 'checkpoint_filter_fn', None)
    own, patches = network.state_dict(), 'patch_embed.proj.weight'
    same_patches = patches not in state or patches in own and own[patches].shape == state[patches].shape
    return convert(state, network) if convert and same_patches else state


def check_size(opt, timm, network, size):
    """
    Raises UserError for a size that is no multiple of the patch size; timm would ignore the rest of the image. size:
    the network's.
    """
    patches = getattr(network, 'patch_embed', None)
    if not isinstance(patches, timm.layers.PatchEmbed) or patches.dynamic_img_pad:
        return
    sizes = {f'--input_size {written(opt.input_size)}': sides(opt.input_size)} if opt.input_size else {}
    for given, lengths in (sizes | in_evaluation(opt, size)).items():
        for length, side in zip(lengths, patches.patch_size, strict=True):
            if length % side:
                below = length // side * side
                above = below + side
                pixels = f' ({length} pixels)' if given.startswith('--eval_views') else ''
                raise UserError(f'{given}{pixels}: --arch {opt.arch} divides images into patches of {side} pixels; '
                                f'give a multiple, such as {f"{below} or " if below else ""}{above}')


def backbone(opt, name):
    """`name` without its classifier, with timm's own pooling."""
    timm, own_name = library(), name_in_timm(opt, name)
    if not timm.is_model(own_name):
        raise UserError(f'--arch {opt.arch}: timm has no network {own_name}, which its config.json names')
    fixed_size = timm.get_pretrained_cfg(own_name).fixed_input_size
    arguments = {'img_size': opt.input_size} if opt.input_size and fixed_size else {}
    network = timm.create_model(name, pretrained=False, num_classes=0, **arguments)
    config = timm.data.resolve_model_data_config(network)
    height, width = config['input_size'][1:]
    size = opt.input_size or (height if height == width else [height, width])
    check_size(opt, timm, network, size)

    def download():
        if name.startswith(SOURCES):
            return read_state_dict(name)
        return timm.create_model(name, pretrained=True, num_classes=0, **arguments).state_dict()

    head = network.pretrained_cfg['classifier'] or ()
    return Backbone(network, size, tuple(config['mean']), tuple(config['std']),
                    head=tuple(f'{name}.' for name in ([head] if isinstance(head, str) else head)), download=download,
                    converted=converted, maps=maps, n_prefix=getattr(network, 'num_prefix_tokens', None) or 0)


def save(opt, network, folder):
    """Writes weights and config.json of the backbone of an EmbeddingNetwork to `folder`, as timm loads them."""
    library().models.save_for_hf(network.backbone, folder, safe_serialization=True, data_config={
        'input_size': (3, *sides(network.input_size)), 'interpolation': opt.interpolation,
        'mean': tuple(network.mean.flatten().tolist()), 'std': tuple(network.std.flatten().tolist())})
    config = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
    for name in ('tag', 'license'):    # facts about timm's weights, not about these
        config['pretrained_cfg'].pop(name, None)
    (folder / 'config.json').write_text(json.dumps(config), encoding='utf-8')
