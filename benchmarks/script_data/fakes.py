"""Stand-ins for data sets, loggers and large models, and the recorder of losses; ``sitecustomize`` installs them."""

import ast
import atexit
import collections
import collections.abc
import contextlib
import functools
import hashlib
import importlib
import json
import os
import random
import sys
import types
from importlib.machinery import ModuleSpec

from ampcompat.launch.after_import import ImportHook

#: Packages that scripts only log to or plot with: every name in them is a function that returns another such object.
SILENT = "wandb matplotlib torch.utils.tensorboard tensorboardX visdom seaborn IPython aim ray wget".split()
SILENT += ["sidechainnet"] + os.environ.get("SCRIPT_SILENT", "").split()

#: Data sets of torchvision: name -> (mode of the images, size, number of classes).
IMAGES = {
    "MNIST": ("L", 28, 10),
    "FashionMNIST": ("L", 28, 10),
    "CIFAR10": ("RGB", 32, 10),
    "CIFAR100": ("RGB", 32, 100),
    "ImageFolder": ("RGB", 72, 10),
    "STL10": ("RGB", 96, 10),
    "SVHN": ("RGB", 32, 10),
    "Caltech101": ("RGB", 72, 10),
}


def install():
    """Wait for the imports of what is replaced, and give old scripts the names that newer Pythons lack."""
    for name in ("MutableMapping", "Mapping", "Sequence", "Iterable", "Callable"):
        if not hasattr(collections, name):
            setattr(collections, name, getattr(collections.abc, name))
    sys.meta_path.insert(0, SilentFinder)
    sys.modules["torchvision._meta_registrations"] = Silent()  # it fails where torchvision is built for another torch
    ImportHook(["numpy"], lambda name: _name_as_before()).start()
    ImportHook(["torch"], lambda name: (Recorder().install(), _torch_as_before())).start()
    ImportHook(["torchvision.datasets"], _replace_datasets).start()
    ImportHook(["torchvision.ops.boxes"], _without_extension).start()
    ImportHook(["torchvision.models"], _torchvision_as_before).start()
    for name in ("faster", "keypoint", "mask"):
        ImportHook([f"torchvision.models.detection.{name}_rcnn"], _no_weights).start()
    for rule in filter(None, os.environ.get("SCRIPT_SMALL", "").split(";")):
        module, _, call = rule.strip().partition(":")
        ImportHook([module], functools.partial(_shrink, ast.parse(call, mode="eval").body)).start()


def _name_as_before():
    """Give NumPy the names that versions before 1.24 and 2 had."""
    import numpy

    names = {"float_": numpy.float64, "complex_": numpy.complex128, "unicode_": numpy.str_}
    names.update({each.__name__: each for each in (int, float, object, bool, complex, str)})
    names["sctypes"] = {"int": [numpy.int16, numpy.int32, numpy.int64], "float": [numpy.float32, numpy.float64]}
    for name, value in names.items():
        if name not in vars(numpy):
            setattr(numpy, name, value)


def _torch_as_before():
    """Give torch the module ``torch._six``, which went with torch 2.0."""
    try:
        six = importlib.import_module("torch._six")
    except ImportError:
        six = sys.modules["torch._six"] = types.ModuleType("torch._six")
    names = {"container_abcs": collections.abc, "string_classes": (str, bytes), "int_classes": int, "inf": float("inf")}
    for name, value in names.items():
        if not hasattr(six, name):
            setattr(six, name, value)
    sampler = importlib.import_module("torch.utils.data").Sampler
    if sampler.__init__ is object.__init__:
        sampler.__init__ = lambda own, data_source=None: None


def _torchvision_as_before(module_name):
    """Give torchvision the module ``torchvision.models.utils``, which went with 0.13."""
    utils = types.ModuleType("torchvision.models.utils")
    utils.load_state_dict_from_url = Silent
    sys.modules.setdefault("torchvision.models.utils", utils)


def _no_weights(module_name):
    """Give a module of torchvision the addresses of weights that it had before 0.13."""
    vars(importlib.import_module(module_name)).setdefault("model_urls", {})


def _without_extension(module_name):
    """Replace non-maximum suppression where torchvision cannot load its extension, as that for CUDA on a CPU."""
    boxes = importlib.import_module(module_name)
    if importlib.import_module("torchvision.extension")._has_ops():
        return

    def nms(corners, scores, iou_threshold):
        import torch

        kept, order = [], scores.argsort(descending=True)
        overlaps = boxes.box_iou(corners.float(), corners.float())
        while len(order):
            kept.append(order[0])
            order = order[1:][overlaps[order[0], order[1:]] <= iou_threshold]
        return torch.stack(kept) if kept else scores.new_zeros(0, dtype=torch.int64)

    boxes.nms = nms


class Silent(types.ModuleType):
    """A module, class, function or context manager that accepts everything and does nothing."""

    def __init__(self, name="silent", *args, **kwargs):
        super().__init__(str(name))
        self.__path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Silent(name)

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) else Silent()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def __iter__(self):
        return iter((Silent(), Silent()))

    def __setitem__(self, key, value):
        pass

    def __fspath__(self):
        return self.__name__


class SilentFinder:
    """Finds the packages of ``SILENT`` and all of their modules."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in os.environ.get("SCRIPT_LACKS", "").split():
            return None
        if any(name == each or name.startswith(each + ".") for each in SILENT):
            return ModuleSpec(name, SilentFinder, is_package=True)
        return None

    @staticmethod
    def create_module(spec):
        return Silent(spec.name)

    @staticmethod
    def exec_module(module):
        pass


def _shrink(call, module_name):
    module = importlib.import_module(module_name)
    original = getattr(module, call.func.id)
    smaller = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
    other = smaller.pop("instead", None)  # another function of the module

    target = original.__init__ if isinstance(original, type) else original

    @functools.wraps(target)
    def small(*args, **kwargs):
        return (getattr(module, other) if other else target)(*args, **dict(kwargs, **smaller))

    if isinstance(original, type):
        original.__init__ = small
    else:
        setattr(module, call.func.id, small)


# -- data --------------------------------------------------------------------------------------------------------------


def _replace_datasets(module_name):
    importlib.import_module(module_name)
    modules = [module for name, module in sys.modules.items() if name.startswith(module_name)]  # its own ones too
    for module in modules:
        vars(module).setdefault("Kinetics400", Silent())
    for name, (mode, size, classes) in IMAGES.items():
        made = _dataset(name, mode, size, classes)
        for module in modules:
            if hasattr(module, name):
                setattr(module, name, made)


def _dataset(name, mode, size, classes):
    import numpy
    import torch

    class Images(torch.utils.data.Dataset):
        """Random images; the label shifts their brightness, so that there is something to learn."""

        def __init__(self, root=None, train=True, transform=None, target_transform=None, *args, **kwargs):
            count = int(os.environ.get("SCRIPT_IMAGES", "256"))
            rng = numpy.random.RandomState(len(name) + bool(train))
            shape = (count, size, size) + ((3,) if mode == "RGB" else ())
            labels = rng.randint(0, classes, count)
            pixels = rng.randint(0, 128, shape) + labels.reshape((-1,) + (1,) * (len(shape) - 1)) * (120 // classes)
            self.images = pixels.astype("uint8")
            self.transform = train if callable(train) else transform  # ImageFolder takes it in second place
            self.target_transform = target_transform
            self.data = torch.from_numpy(self.images) if mode == "L" else self.images
            self.targets = torch.from_numpy(labels) if mode == "L" else labels.tolist()
            self.train_data, self.train_labels = self.data, self.targets
            self.classes = [str(each) for each in range(classes)]
            self.class_to_idx = {each: index for index, each in enumerate(self.classes)}

        def __len__(self):
            return len(self.images)

        def __getitem__(self, index):
            from PIL import Image

            image, label = Image.fromarray(self.images[index]), int(self.targets[index])
            image = image if self.transform is None else self.transform(image)
            return image, label if self.target_transform is None else self.target_transform(label)

    Images.__name__ = Images.__qualname__ = name
    return Images


# -- the record --------------------------------------------------------------------------------------------------------


class Recorder:
    """Writes the losses, what ``backward`` is called on, and a digest of the weights that optimizers hold.

    Losses that ``amp.scale_loss`` or the script's ``GradScaler`` scales are recorded before. ``torch``'s random
    generators are seeded.
    """

    def __init__(self):
        self._losses = []
        self._optimizers = []  # in the order of their first steps
        self._limit = int(os.environ.get("SCRIPT_STEPS", "40"))

    def install(self):
        import torch

        self._seed(torch)
        backward = torch.Tensor.backward

        @functools.wraps(backward)
        def recorded(loss, *args, **kwargs):
            self._before(torch, loss)
            return backward(loss, *args, **kwargs)

        torch.Tensor.backward = recorded
        scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
        scale = scaler.scale

        @functools.wraps(scale)
        def scaled(own, outputs):
            result = scale(own, outputs)
            if isinstance(outputs, torch.Tensor):
                _note_unscaled(result, outputs)
            return result

        scaler.scale = scaled
        register = getattr(sys.modules[torch.optim.Optimizer.__module__], "register_optimizer_step_pre_hook", None)
        if register is not None:
            register(self._stepped)
        ImportHook(["ampcompat.amp"], self._watch_scale_loss).start()
        atexit.register(self._write)

    def _watch_scale_loss(self, module_name):
        amp = importlib.import_module(module_name)
        scale_loss = amp.scale_loss

        @functools.wraps(scale_loss)
        @contextlib.contextmanager
        def watched(loss, *args, **kwargs):
            with scale_loss(loss, *args, **kwargs) as scaled:
                _note_unscaled(scaled, loss)
                yield scaled

        amp.scale_loss = watched

    def _stepped(self, optimizer, args, kwargs):
        if not any(each is optimizer for each in self._optimizers):
            self._optimizers.append(optimizer)

    @staticmethod
    def _seed(torch):
        random.seed(0)
        torch.manual_seed(0)
        try:
            import numpy
        except ImportError:
            return
        numpy.random.seed(0)

    def _before(self, torch, loss):
        if len(self._losses) >= self._limit:
            sys.stdout.flush()
            if os.environ.get("RANK", "0") != "0" or "MASTER_ADDR" in os.environ or os.getpid() != _STARTED:
                self._write()
                os._exit(0)  # exit handlers of other ranks would wait for this one
            raise SystemExit(0)
        value = getattr(loss, "unscaled_loss", loss)
        self._losses.append(float(value.detach().double().mean()))

    def _write(self):
        rank = os.environ.get("RANK")
        path = os.environ["SCRIPT_RECORD"] + (f".{rank}" if rank not in (None, "0") else "")
        if not self._losses and os.path.exists(path):
            return  # a process that did not train, such as a worker of a DataLoader
        with open(path, "w") as file:
            json.dump({"losses": self._losses, "digest": self._digest(), "level": _level()}, file)

    def _digest(self):
        found = hashlib.sha256()
        for optimizer in self._optimizers:
            for param in [each for group in optimizer.param_groups for each in group["params"]]:
                found.update(param.detach().cpu().contiguous().reshape(-1).double().numpy().tobytes())
        return found.hexdigest()[:16]


def _note_unscaled(scaled, loss):
    if scaled is not loss:
        scaled.unscaled_loss = loss


def _level():
    """Return the opt level in force, and how many steps it skipped, or None."""
    module = sys.modules.get("ampcompat.engine.session.process_state")
    session = None if module is None else module.current()
    if session is None:
        return None
    return session.policy.opt_level if hasattr(session, "policy") else "?"


_STARTED = os.getpid()
