"""The public scripts and libraries with Apex ``amp`` that ``forced_scripts.py --list apex`` runs at their own level."""

import apex_scripts
from apex_loops import *  # noqa: F403 - the sources that ``setup`` names
from apex_scripts import *  # noqa: F403
from forced_list import Apex

STYLEGAN = """
import stylegan2_pytorch.stylegan2_pytorch as library
library.multiprocessing.cpu_count = lambda: 0
library.EXTS = ["jpg"]
from stylegan2_pytorch import ModelLoader, Trainer
trainer = Trainer("default", "results", "models", base_dir=".", image_size=32, network_capacity=2, batch_size=2,
                  gradient_accumulate_every=2, fp16=True, mixed_prob=0.9, num_workers=0, save_every=100, trunc_psi=0.6)
trainer.set_data_src("images/0")
for _ in range(4):
    trainer.train()
"""
LR_FINDER = """
import torch
from torchvision import datasets, transforms
from torch_lr_finder import LRFinder
from apex import amp
data = datasets.MNIST("data", transform=transforms.Compose([transforms.ToTensor(), torch.flatten]))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(784, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
finder = LRFinder(model, optimizer, torch.nn.CrossEntropyLoss(), device="cuda", amp_backend="apex",
                  amp_config={}, grad_scaler=None)
finder.range_test(loader, end_lr=1, num_iter=20, accumulation_steps=2)
finder.reset()
"""
WTFML = """
import torch
from apex import amp
from wtfml.engine.engine import Engine
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    def forward(self, inputs, targets):
        outputs = self.layers(inputs)
        return outputs, torch.nn.functional.cross_entropy(outputs, targets)
model = Model().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
data = [{"inputs": torch.randn(8), "targets": torch.tensor(index % 3)} for index in range(256)]
Engine(model, optimizer, "cuda", fp16=True).train(torch.utils.data.DataLoader(data, batch_size=16))
"""
JOEY = """
name: "reverse"
data:
    train: "train"
    dev: "train"
    test: "train"
    dataset_type: "plain"
    src: {lang: "src", lowercase: False, level: "word", max_length: 30, voc_limit: 100, voc_min_freq: 1}
    trg: {lang: "trg", lowercase: False, level: "word", max_length: 30, voc_limit: 100, voc_min_freq: 1}
testing: {beam_size: 1, alpha: 1.0, batch_size: 16, batch_type: "sentence"}
training:
    random_seed: 42
    optimizer: "adam"
    learning_rate: 0.001
    scheduling: "noam"
    learning_rate_factor: 1
    learning_rate_warmup: 10
    batch_size: 16
    batch_type: "sentence"
    eval_batch_size: 16
    eval_batch_type: "sentence"
    epochs: 1
    validation_freq: 4
    logging_freq: 4
    model_dir: "model"
    overwrite: True
    shuffle: True
    use_cuda: True
    num_workers: 0
    fp16: True
model:
    initializer: "xavier"
    encoder: {type: "transformer", num_layers: 1, num_heads: 2, embeddings: {embedding_dim: 16}, hidden_size: 16,
              ff_size: 32}
    decoder: {type: "transformer", num_layers: 1, num_heads: 2, embeddings: {embedding_dim: 16}, hidden_size: 16,
              ff_size: 32}
"""

CATALYST = """
import torch
from catalyst import dl
data = torch.utils.data.TensorDataset(torch.randn(256, 8), torch.randint(3, (256,)))
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
dl.SupervisedRunner().train(
    model=model, criterion=torch.nn.CrossEntropyLoss(), optimizer=torch.optim.Adam(model.parameters(), lr=0.02),
    loaders={"train": torch.utils.data.DataLoader(data, batch_size=16)}, num_epochs=2, logdir="log",
    fp16={"apex": True, "opt_level": "O1"})
"""
NEMO = """
import nemo
factory = nemo.core.NeuralModuleFactory(placement=nemo.core.DeviceType.GPU, log_dir="log",
                                        optimization_level=nemo.core.Optimization.mxprO1)
data = nemo.tutorials.RealFunctionDataLayer(n=1000, batch_size=32)
inputs, targets = data()
loss = nemo.tutorials.MSELoss()(predictions=nemo.tutorials.TaylorNet(dim=4)(x=inputs), target=targets)
shown = nemo.core.SimpleLossLoggerCallback(tensors=[loss], print_func=lambda values: print(values[0].item()))
factory.train([loss], callbacks=[shown], optimization_params={"num_epochs": 2, "lr": 0.0003}, optimizer="sgd")
"""

LIGHTNING = "pytorch_lightning-1.6.5"
LIGHTNING_OPTIONS = (
    "--gpus 1 --precision 16 --amp_backend apex --logger False --checkpoint_callback False --max_epochs 2 "
)

# fmt: off
SCRIPTS = [
    Apex("ignite_cifar100_apex", "pytorch_ignite-0.5.5/examples/cifar100_amp_benchmark", "benchmark_nvidia_apex.py",
         "vision, ignite", "data --batch_size 16 --max_epochs 1 --opt O2",
         small="torchvision.models:wide_resnet50_2(instead='shufflenet_v2_x0_5')", steps=6, level="O2"),
    Apex("denoising_diffusion", "denoising_diffusion_pytorch-0.6.0", "train.py", "diffusion",
         setup=("module('train.py', APEX_DIFFUSION)", "images(size=20)", "folders('results')")),
    Apex("stylegan2", "stylegan2_pytorch-1.5.10", "train.py", "GAN, three losses",
         setup=("module('train.py', STYLEGAN)", "images(size=36)")),
    Apex("lr_finder", "torch_lr_finder-0.2.2", "train.py", "learning rate range test",
         setup=("module('train.py', LR_FINDER)",)),
    Apex("wtfml_engine", "wtfml-0.0.3", "train.py", "engine of a competition library",
         setup=("module('train.py', WTFML)",)),
    Apex("joeynmt", "joeynmt-2.0.0", "-m joeynmt train config.yaml", "translation",
         setup=("module('config.yaml', JOEY)", "text('train.src', 12, 120)", "text('train.trg', 12, 120)")),
    Apex("lightning_ppo", LIGHTNING, "-m pl_examples.domain_templates.reinforce_learn_ppo",
         "reinforcement learning, Lightning 1.6",
         LIGHTNING_OPTIONS + "--amp_level O1 --env CartPole-v0 --batch_size 32", lacks="wandb"),
    Apex("lightning_autoencoder", LIGHTNING, "-m pl_examples.basic_examples.autoencoder", "autoencoder, Lightning 1.6",
         LIGHTNING_OPTIONS + "--amp_level O1 --batch_size 1000", images=60000, steps=8, lacks="wandb"),
    Apex("sockeye", "sockeye-3.1.10", "-m sockeye.train", "translation",
         "--source train.src --target train.trg -vs train.src -vt train.trg --output model --num-layers 1:1 "
         "--transformer-model-size 16 --transformer-attention-heads 2 --transformer-feed-forward-num-hidden 32 "
         "--batch-size 16 --batch-type sentence --max-updates 20 --checkpoint-interval 10 --max-seq-len 20 "
         "--decode-and-evaluate 0 --apex-amp --no-bucketing",
         setup=("text('train.src', 12, 120)", "text('train.trg', 12, 120)"), level="O2"),
    Apex("catalyst_runner", "catalyst-20.12", "train.py", "classifier, callbacks",
         setup=("module('train.py', CATALYST)",)),
    Apex("nemo_taylor_net", "nemo_toolkit-0.10.1", "train.py",
         "graph of neural modules, the core of the speech toolkit", setup=("module('train.py', NEMO)",)),
    Apex("ddpm_proteins", "ddpm_proteins-0.0.11", "train.py", "diffusion, proteins",
         setup=("module('train.py', PROTEINS)", "images(size=20)")),
    Apex("unet_stylegan2", "unet_stylegan2-0.5.1", "train.py", "GAN, gradient penalty",
         setup=("module('train.py', UNET_STYLEGAN)", "images(size=36)")),
    Apex("nnunet", "nnunet-1.5", "train.py", "medical segmentation", setup=("module('train.py', NNUNET)",)),
    Apex("sentence_transformers", "sentence-transformers-0.2.6.1", "train.py", "retrieval",
         setup=("module('train.py', RETRIEVAL)",)),
    Apex("torchdistill_hints", "torchdistill-0.1.0", "train.py", "distillation with hooks",
         setup=("module('train.py', DISTILLATION)",)),
    Apex("torchdistill_detection", "torchdistill-0.1.0", "train.py", "object detection, Faster R-CNN",
         setup=("module('train.py', DETECTION)", "module('boxes.py', BOXES)")),
    Apex("bolts_retinanet", "lightning_bolts-0.5.0", "train.py", "object detection, Lightning 1.6",
         setup=("module('train.py', RETINANET)", "module('boxes.py', BOXES)"), lacks="wandb"),
    Apex("bolts_yolo", "lightning_bolts-0.5.0", "train.py", "object detection, Lightning 1.6",
         setup=("module('train.py', YOLO)", "module('boxes.py', BOXES)", "module('yolo.cfg', YOLO_CONFIGURATION)"),
         lacks="wandb"),
    Apex("bolts_dqn", "lightning_bolts-0.5.0", "train.py", "reinforcement learning, Lightning 1.6",
         setup=("module('train.py', DQN)",), lacks="wandb"),
    Apex("bolts_sac", "lightning_bolts-0.5.0", "train.py", "reinforcement learning, three optimizers",
         setup=("module('train.py', SAC)",), lacks="wandb"),
    Apex("bolts_segmentation", "lightning_bolts-0.5.0", "train.py", "segmentation, Lightning 1.6",
         setup=("module('train.py', SEGMENTATION)",), level="O2", lacks="wandb"),
    Apex("bolts_simclr", "lightning_bolts-0.5.0", "train.py", "contrastive learning",
         setup=("module('train.py', SIMCLR)",), steps=8, lacks="wandb"),
    Apex("nemo_speech_recognition", "nemo_toolkit-0.10.1", "train.py", "speech recognition, CTC",
         setup=("module('train.py', SPEECH)", "audio()")),
    Apex("nemo_tacotron2", "nemo_toolkit-0.10.1", "train.py", "speech synthesis",
         setup=("module('train.py', TACOTRON)", "audio()"), silent="transformers youtokentome"),
    Apex("nemo_waveglow", "nemo_toolkit-0.10.1", "train.py", "vocoder, normalizing flow",
         setup=("module('train.py', WAVEGLOW)", "audio()"), silent="transformers youtokentome"),
    Apex("tape_language_model", "tape_proteins-0.4", "train.py", "protein language model",
         "transformer masked_language_modeling --fp16 --batch_size 8 --model_config_file config.json "
         "--num_workers 0 --num_train_epochs 3 --warmup_steps 4 "
         "--gradient_accumulation_steps 2 --learning_rate 0.001",
         setup=("proteins()", "module('config.json', TAPE)", "module('train.py', TAPE_TRAIN)"), steps=100, level="O2"),
    Apex("tape_remote_homology", "tape_proteins-0.4", "train.py", "protein classification, residual network",
         "resnet remote_homology --fp16 --batch_size 8 --model_config_file config.json "
         "--num_workers 0 --num_train_epochs 3 --warmup_steps 4 " "--learning_rate 0.001",
         setup=("proteins()", "module('config.json', TAPE)", "module('train.py', TAPE_TRAIN)"), steps=100, level="O2"),
    Apex("transformers_t5", "transformers-4.27.4", "train.py", "sequence to sequence, its Trainer",
         setup=("module('train.py', SUMMARIES)",)),
    Apex("timm_apex_scaler", "timm-0.4.12", "train.py", "vision, FusedLAMB", setup=("module('train.py', IMAGES)",)),
    Apex("molclr", "yuyangw_MolCLR", "molclr.py", "graph network, molecules",
         setup=("module('dataset/dataset.py', MOLECULES)", "module('utils/nt_xent.py', NT_XENT)",
                  "module('config.yaml', MOLCLR)"), level="O2"),
]
# fmt: on
SCRIPTS += apex_scripts.SCRIPTS
