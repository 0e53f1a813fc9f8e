"""The architectures that ``zoo.py`` tries: what each package registers, made small, with random weights and inputs.

``names()`` has an item per architecture, "PACKAGE NAME"; ``built(name)`` makes its model and lists inputs for it, of
which the first that the model takes is used.
"""

import importlib
import inspect
import re

import torch

#: More params than this are left out: another size of the same architecture is there.
MOST_PARAMS = 45_000_000

#: What an integer of a configuration becomes where it is larger, by its name: the first that fits.
SIZES = (
    ("vocab|num_embeddings|codebook_size", 64),
    ("token_id|token_index", 1),
    ("experts_per_tok|top_?k|num_key_value_heads|n_group|topk_group|kv_heads", 2),
    ("experts", 4),
    ("head_dim|_rank|head_size", 8),
    ("heads|n_head", 4),
    ("layers|n_layer|depth|blocks$|per_block|repeats", 2),
    ("intermediate|ffn|mlp_dim|n_inner|d_ff|inner_dim", 64),
    ("hidden|d_model|n_embd|embed|dim$|width|channels$|projection|_size_factor|output_size", 32),
    ("image_size|sample_size|input_size", 32),
    ("patch_size|tubelet", 8),
    ("position|length|window|seq|n_ctx|n_positions|num_frames", 64),
    ("mel", 16),
)


def smaller(name, value):
    """Return the value of a configuration, made small; nothing is dropped out."""
    if isinstance(value, float) and "drop" in name:
        return 0.0
    if isinstance(value, (list, tuple)) and value and all(type(each) is int for each in value):
        return type(value)(smaller(name, each) for each in value)
    if type(value) is not int:
        return value
    fitting = [size for pattern, size in SIZES if re.search(pattern, name)]
    return min(value, fitting[0]) if fitting else value


def names():
    """Return the names of all items, package by package."""
    return [f"{package} {name}" for package, (listed, _) in SOURCES.items() for name in listed()]


def built(name, seed):
    """Return an item's model and the inputs to try, each a pair of positional and keyword arguments."""
    package, name = name.split(" ", 1)
    torch.default_generator.manual_seed(seed)
    model, inputs = SOURCES[package][1](name)
    if sum(param.numel() for param in model.parameters()) > MOST_PARAMS:
        raise ValueError("more than 45 million params")
    return model.train(), inputs


def images(*shapes):
    return [((torch.randn(2, *shape),), {}) for shape in shapes]


# -- torchvision -------------------------------------------------------------------------------------------------------


def torchvision_names():
    models = importlib.import_module("torchvision.models")
    return [each for each in models.list_models() if not each.startswith("quantized")]


def torchvision_model(name):
    models = importlib.import_module("torchvision.models")
    builder = models.get_model_builder(name)
    module, options = builder.__module__, {"weights": None}
    if "weights_backbone" in inspect.signature(builder).parameters:
        options["weights_backbone"] = None
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = False
    if module.endswith("vision_transformer"):
        options["image_size"] = 32 if name != "vit_h_14" else 28
    if "detection" in module:
        options.update({} if name.startswith("ssd") else {"min_size": 64, "max_size": 64}, num_classes=3)
    model = builder(**options)
    if "detection" in module:
        boxes = torch.tensor([[4.0, 4.0, 40.0, 44.0], [20.0, 10.0, 60.0, 60.0]])
        target = {"boxes": boxes, "labels": torch.tensor([1, 2]), "masks": torch.ones(2, 64, 64, dtype=torch.uint8)}
        target["keypoints"] = torch.tensor([[[20.0, 20.0, 1.0]] * 17] * 2)
        return model, [(([torch.rand(3, 64, 64)] * 2, [target] * 2), {})]
    if "optical_flow" in module:
        return model, [((torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128)), {"num_flow_updates": 3})]
    if "video" in module:
        return model, images((3, 8, 64, 64), (3, 16, 112, 112), (3, 16, 224, 224))
    return model, images((3, 64, 64), (3, 28, 28), (3, 32, 32), (3, 96, 96), (3, 224, 224))


# -- timm: the smallest model of each family ---------------------------------------------------------------------------


def timm_names():
    timm = importlib.import_module("timm")
    return sorted(each for each in timm.list_modules() if timm.list_models(module=each))


def timm_model(family):
    timm = importlib.import_module("timm")

    def size(name):
        with torch.device("meta"):
            return sum(param.numel() for param in timm.create_model(name).parameters())

    sizes = {}
    for name in timm.list_models(module=family):
        try:
            sizes[name] = size(name)
        except Exception:  # some models read a value while they are made
            continue
    model = timm.create_model(min(sizes or timm.list_models(module=family), key=lambda name: sizes.get(name, 0)))
    shape = model.default_cfg["input_size"]
    return model, images((shape[0], 64, 64), (shape[0], 128, 128), shape)


# -- transformers: every type of configuration, shrunk -----------------------------------------------------------------


def transformers_names():
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    return sorted(auto.MODEL_MAPPING_NAMES)


def shrink(config):
    """Make a configuration small, and those within it."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            shrink(value)
        elif not name.startswith("_"):
            setattr(config, name, smaller(name, value))
    return config


def transformers_model(kind):
    transformers = importlib.import_module("transformers")
    config = shrink(transformers.AutoConfig.for_model(kind))
    config.use_cache = False
    model = transformers.AutoModel.from_config(config)
    parameters = inspect.signature(model.forward).parameters
    text = {"input_ids": torch.randint(2, 60, (2, 16))}
    if config.is_encoder_decoder:
        text["decoder_input_ids"] = torch.randint(2, 60, (2, 16))
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", 64) or 64
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    pixels = torch.randn(2, getattr(vision, "num_channels", 3) or 3, height, width)
    mels = getattr(getattr(config, "audio_config", config), "num_mel_bins", 80)
    candidates = [
        {**text, "pixel_values": pixels},
        text,
        {"pixel_values": pixels},
        {"pixel_values": torch.randn(2, 3, 64, 64)},
        {"pixel_values": torch.randn(2, 8, 3, height, width)},
        {"pixel_values_videos": torch.randn(2, 8, 3, height, width)},
        {"input_values": torch.randn(2, 4000)},
        {"input_values": torch.randn(2, 1, 4000)},
        {"input_features": torch.randn(2, mels, 128)},
        {"input_features": torch.randn(2, 128, mels)},
        {"input_features": torch.randn(2, mels, 128), "decoder_input_ids": text["input_ids"]},
    ]
    return model, [((), each) for each in candidates if set(each) <= set(parameters)]


# -- diffusers, segmentation_models_pytorch, torch_geometric -----------------------------------------------------------


def diffusers_names():
    diffusers = importlib.import_module("diffusers")
    found = importlib.import_module("diffusers.models")._import_structure.values()
    kinds = sorted({name for listed in found for name in listed if re.search("Model|Autoencoder", name)})
    return [name for name in kinds if hasattr(diffusers, name) and "Flax" not in name]


def diffusers_model(name):
    cls = getattr(importlib.import_module("diffusers"), name)
    options = {
        key: smaller(key, each.default)
        for key, each in inspect.signature(cls).parameters.items()
        if each.default is not each.empty and each.default is not None
    }
    if "norm_num_groups" in options:
        options["norm_num_groups"] = 4
    model = cls(**options)
    config, parameters = model.config, inspect.signature(model.forward).parameters
    channels = config.get("in_channels", 3)
    width = next(
        (config[key] for key in ("cross_attention_dim", "joint_attention_dim", "text_dim") if config.get(key)), 32
    )
    shared = {"timestep": torch.tensor([5, 7]), "encoder_hidden_states": torch.randn(2, 8, width)}
    shared = {key: value for key, value in shared.items() if key in parameters}
    first = next(iter(parameters))
    shapes = [(channels, 32, 32), (channels, 8, 32, 32), (channels, 64), (16, channels)]
    return model, [((), {first: torch.randn(2, *shape), **shared}) for shape in shapes]


def segmentation_names():
    return sorted(importlib.import_module("segmentation_models_pytorch").MODEL_ARCHITECTURES_MAPPING)


def segmentation_model(name):
    module = importlib.import_module("segmentation_models_pytorch")
    encoder = (
        "resnet18"
        if name not in ("segformer", "dpt")
        else {"segformer": "mit_b0", "dpt": "tu-vit_tiny_patch16_224"}[name]
    )
    return module.create_model(name, encoder_name=encoder, encoder_weights=None), images((3, 64, 64), (3, 224, 224))


def geometric_names():
    nn = importlib.import_module("torch_geometric.nn")
    basic = ["GCN", "GraphSAGE", "GIN", "GAT", "EdgeCNN"]
    return basic + sorted(each for each in nn.conv.__all__ if each != "MessagePassing")


def geometric_model(name):
    nn = importlib.import_module("torch_geometric.nn")
    values = dict.fromkeys(("in_channels", "out_channels", "channels", "hidden_channels"), 8)
    values.update(dict.fromkeys(("num_layers", "K", "kernel_size", "heads", "num_relations"), 2))
    values.update(nn=torch.nn.Linear(8, 8), dim=1, nhead=1, alpha=0.5)
    cls = getattr(nn, name)
    needed = [key for key, each in inspect.signature(cls).parameters.items() if each.default is each.empty]
    model = cls(**{key: values[key] for key in needed if key in values})
    nodes, edges = torch.randn(8, 8), torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 0], [1, 2, 3, 4, 5, 6, 7, 0, 4]])
    kinds = {"edge_type": torch.tensor([0, 1] * 4 + [0])}
    return model, [((nodes, edges), {}), ((nodes, edges), kinds), ((nodes, torch.rand(8, 3), edges), {})]


SOURCES = {
    "torchvision": (torchvision_names, torchvision_model),
    "timm": (timm_names, timm_model),
    "transformers": (transformers_names, transformers_model),
    "diffusers": (diffusers_names, diffusers_model),
    "segmentation-models-pytorch": (segmentation_names, segmentation_model),
    "torch-geometric": (geometric_names, geometric_model),
}
