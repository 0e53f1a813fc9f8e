"""A few lines each that call the training loop of a package, where the package has no script of its own.

The loops call ``amp`` themselves, at the level that ``apex_list.py`` names; the data is small and random.
"""

UNET_STYLEGAN = """
from unet_stylegan2.unet_stylegan2 import Trainer
trainer = Trainer("default", "results", "models", image_size=32, network_capacity=2, batch_size=2,
                  gradient_accumulate_every=2, fp16=True, num_workers=0, save_every=100, aug_prob=0.5)
trainer.set_data_src("images/0")
for _ in range(4):
    trainer.train()
"""
NNUNET = """
import sys
import numpy
import torch
from nnunet.network_architecture.generic_UNet import Generic_UNet
from nnunet.training.loss_functions.dice_loss import DC_and_CE_loss
from nnunet.training.loss_functions.deep_supervision import MultipleOutputLoss2
from nnunet.training.network_training.network_trainer import NetworkTrainer
from nnunet.training.network_training.nnUNetTrainerV2 import nnUNetTrainerV2
from nnunet.utilities.nd_softmax import softmax_helper

class Trainer(nnUNetTrainerV2):
    def __init__(self):
        NetworkTrainer.__init__(self, True, fp16=True)
        self.network = Generic_UNet(
            1, 4, 3, 2, 2, 2, torch.nn.Conv2d, torch.nn.InstanceNorm2d, {"eps": 1e-5, "affine": True},
            torch.nn.Dropout2d, {"p": 0, "inplace": True}, torch.nn.LeakyReLU,
            {"negative_slope": 1e-2, "inplace": True}, True, False,
            lambda x: x, None, [[2, 2], [2, 2]], [[3, 3], [3, 3], [3, 3]], False, True, True).cuda()
        self.network.inference_apply_nonlin = softmax_helper
        self.loss = MultipleOutputLoss2(
            DC_and_CE_loss({"batch_dice": True, "smooth": 1e-5, "do_bg": False}, {}), [2 / 3, 1 / 3])
        self.initial_lr, self.weight_decay = 1e-2, 3e-5
        self.initialize_optimizer_and_scheduler()

def batches():
    rng = numpy.random.RandomState(0)
    while True:
        data = rng.randn(4, 1, 32, 32).astype("float32")
        target = (data > 0.5).astype("float32") + (data > 1.5)
        yield {"data": data, "target": [target, target[:, :, ::2, ::2]]}

trainer, data = Trainer(), batches()
trainer._maybe_init_amp()
for _ in range(20):
    trainer.run_iteration(data)
"""
RETRIEVAL = """
import torch
from sentence_transformers import SentenceTransformer, SentencesDataset, losses, models
from sentence_transformers.readers import InputExample
from sentence_transformers.evaluation import SentenceEvaluator
from sentence_transformers.models.tokenizer import WhitespaceTokenizer

words = [f"w{index}" for index in range(50)]
table = torch.randn(51, 24).numpy()
embeddings = models.WordEmbeddings(WhitespaceTokenizer(words + ["pad"]), table, update_embeddings=True)
recurrent = models.LSTM(24, 16, num_layers=1)
pooled = models.Pooling(recurrent.get_word_embedding_dimension(), pooling_mode_mean_tokens=True)
model = SentenceTransformer(modules=[embeddings, recurrent, pooled], device="cuda")
pairs = [InputExample(guid=str(index), label=index % 7,
                      texts=[" ".join(words[(index + step) % 50] for step in part) for part in ((0, 2, 4), (6, 8))])
         for index in range(200)]
loader = torch.utils.data.DataLoader(SentencesDataset(pairs, model), shuffle=True, batch_size=16)
model.fit([(loader, losses.MultipleNegativesRankingLoss(model))], evaluator=None, epochs=2, warmup_steps=4,
          optimizer_params={"lr": 1e-2, "eps": 1e-6, "correct_bias": False}, fp16=True, fp16_opt_level="O1")
"""
DISTILLATION = """
import torch
import torchvision
from torchdistill.core.distillation import get_distillation_box
data = torchvision.datasets.CIFAR10(transform=torchvision.transforms.ToTensor())
teacher, student = (torchvision.models.shufflenet_v2_x0_5(num_classes=10) for _ in range(2))
config = {
    "num_epochs": 2,
    "train_data_loader": {"dataset_id": "cifar", "random_sample": True, "batch_size": 16, "num_workers": 0},
    "teacher": {"forward_hook": {"output": ["conv5"]}, "requires_grad": False},
    "student": {"forward_hook": {"output": ["conv5"]}},
    "optimizer": {"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9}},
    "apex": {"requires": True, "opt_level": "O1"},
    "criterion": {
        "type": "GeneralizedCustomLoss",
        "org_term": {"criterion": {"type": "KDLoss", "params": {"temperature": 4.0, "alpha": 0.5}}, "factor": 1.0},
        "sub_terms": {"hint": {"criterion": {"type": "MSELoss", "params": {"reduction": "mean"}}, "factor": 0.1,
                               "params": {
                                   "input": {"is_from_teacher": False, "module_path": "conv5", "io": "output"},
                                   "target": {"is_from_teacher": True, "module_path": "conv5", "io": "output"}}}},
    },
}
device = torch.device("cuda")
box = get_distillation_box(teacher, student, {"cifar": data}, config, device, None, False, 1)
for epoch in range(box.num_epochs):
    box.pre_process(epoch=epoch)
    for images, targets, supplement in box.train_data_loader:
        box.update_params(box(images.to(device), targets.to(device), supplement))
    box.post_process()
"""
BOXES = """
import torch
import torchvision

class Boxes(torch.utils.data.Dataset):
    def __init__(self, count=48, size=64):
        rng = torch.Generator().manual_seed(0)
        self.corners = torch.randint(4, 24, (count, 2), generator=rng).float()
        self.images = torch.rand(count, 3, size, size, generator=rng) * 0.3
    def __len__(self):
        return len(self.images)
    def __getitem__(self, index):
        left, top = self.corners[index].int().tolist()
        image = self.images[index].clone()
        image[index % 2, top : top + 32, left : left + 24] += 0.6
        boxes = torch.tensor([[left, top, left + 24, top + 32]], dtype=torch.float32)
        return image, {"boxes": boxes, "labels": torch.tensor([1 + index % 2])}

def together(batch):
    return tuple(zip(*batch))
"""
DETECTION = """
import torch
import torchvision
from boxes import Boxes
from torchdistill.core.training import get_training_box
from torchdistill.datasets.collator import register_collate_func

@register_collate_func
def together(batch):
    return tuple(zip(*batch))

model = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
    weights=None, weights_backbone=None, num_classes=3, min_size=64, max_size=64)
config = {
    "num_epochs": 3,
    "train_data_loader": {"dataset_id": "boxes", "random_sample": True, "batch_size": 4, "num_workers": 0,
                          "collate_fn": "together"},
    "model": {"forward_proc": "forward_batch_target"},
    "optimizer": {"type": "SGD", "params": {"lr": 0.005, "momentum": 0.9}},
    "apex": {"requires": True, "opt_level": "O1"},
    "criterion": {"type": "GeneralizedCustomLoss", "func2extract_org_loss": "extract_rcnn_org_loss",
                  "org_term": {"criterion": {}, "factor": 1.0}, "sub_terms": {}},
}
device = torch.device("cuda")
box = get_training_box(model, {"boxes": Boxes()}, config, device, None, False, 1)
for epoch in range(box.num_epochs):
    box.pre_process(epoch=epoch)
    for images, targets, supplement in box.train_data_loader:
        images = [image.to(device) for image in images]
        targets = [{name: value.to(device) for name, value in target.items()} for target in targets]
        box.update_params(box(images, targets, supplement))
    box.post_process()
"""
BOLTS_START = """
import torch
import torchvision
import pytorch_lightning
APEX = {"gpus": 1, "precision": 16, "amp_backend": "apex", "amp_level": "O1", "max_epochs": 4, "logger": False,
        "enable_checkpointing": False, "enable_progress_bar": False}
"""
RETINANET = (
    BOLTS_START
    + """
from boxes import Boxes, together
from pl_bolts.models.detection import RetinaNet
parts = torchvision.models.detection
class Detector(RetinaNet):
    def __init__(self):  # without weights from the network
        pytorch_lightning.LightningModule.__init__(self)
        self.learning_rate, self.num_classes = 1e-3, 3
        backbone = parts.backbone_utils.resnet_fpn_backbone(backbone_name="resnet18", weights=None,
                                                            returned_layers=[2, 3, 4], trainable_layers=5)
        anchors = parts.anchor_utils.AnchorGenerator(((8, 12), (16, 20), (32, 40), (48, 56)), ((0.5, 1.0),) * 4)
        self.model = parts.RetinaNet(backbone, 3, min_size=64, max_size=64, anchor_generator=anchors)
model = Detector()
loader = torch.utils.data.DataLoader(Boxes(), batch_size=4, collate_fn=together)
pytorch_lightning.Trainer(**APEX).fit(model, loader)
"""
)
YOLO = (
    BOLTS_START
    + """
from boxes import Boxes, together
from pl_bolts.models.detection import YOLO, YOLOConfiguration
model = YOLO(YOLOConfiguration("yolo.cfg").get_network(), optimizer_params={"lr": 0.01, "momentum": 0.9},
             lr_scheduler_params={"warmup_epochs": 1, "max_epochs": 300, "warmup_start_lr": 0.01})
loader = torch.utils.data.DataLoader(Boxes(), batch_size=4, collate_fn=together)
pytorch_lightning.Trainer(**APEX).fit(model, loader)
"""
)
YOLO_CONFIGURATION = "[net]\nwidth=64\nheight=64\nchannels=3\n" + "".join(
    f"[convolutional]\nbatch_normalize=1\nfilters={filters}\nsize=3\nstride=2\npad=1\nactivation=leaky\n"
    for filters in (8, 16, 32)
)
YOLO_CONFIGURATION += "[convolutional]\nsize=1\nstride=1\npad=1\nfilters=14\nactivation=linear\n"
YOLO_CONFIGURATION += "[yolo]\nmask=0,1\nanchors=16,24,24,32\nclasses=2\nnum=2\niou_loss=ciou\nignore_thresh=0.7\n"
YOLO_CONFIGURATION += "scale_x_y=1.05\ncls_normalizer=1.0\niou_normalizer=0.07\n"

DQN = (
    BOLTS_START
    + """
from pl_bolts.models.rl import DQN
class Network(torch.nn.Sequential):
    def __init__(self, shape, actions):
        super().__init__(torch.nn.Linear(shape[0], 32), torch.nn.ReLU(), torch.nn.Linear(32, actions))
class Agent(DQN):
    def build_networks(self):
        self.net, self.target_net = (Network(self.obs_shape, self.n_actions) for _ in range(2))
    @staticmethod
    def make_environment(name, seed=None):
        import gym
        return gym.make(name)
agent = Agent("CartPole-v0", warm_start_size=64, sync_rate=4, batch_size=16, batches_per_epoch=20, replay_size=200)
pytorch_lightning.Trainer(**APEX).fit(agent)
"""
)
SAC = (
    BOLTS_START
    + """
from pl_bolts.models.rl import SAC
agent = SAC("Pendulum-v0", warm_start_size=64, batch_size=16, batches_per_epoch=20, replay_size=200)
pytorch_lightning.Trainer(**APEX).fit(agent)
"""
)
SEGMENTATION = (
    BOLTS_START
    + """
from pl_bolts.models.vision import SemSegment
images = torch.rand(32, 3, 32, 32)
data = torch.utils.data.TensorDataset(images, (images.mean(1) > 0.5).long())
class Segmenter(SemSegment):
    def lr_scheduler_step(self, scheduler, index, metric):  # torch renamed what this Lightning looks for
        scheduler.step()
model = Segmenter(num_classes=19, num_layers=3, features_start=8)
pytorch_lightning.Trainer(**dict(APEX, amp_level="O2")).fit(model, torch.utils.data.DataLoader(data, batch_size=8))
"""
)
SIMCLR = (
    BOLTS_START
    + """
from pl_bolts.models.self_supervised import SimCLR
views = [torch.rand(32, 3, 16, 16) for _ in range(3)]
data = [((views[0][index], views[0][index].flip(2), views[2][index]), 0) for index in range(32)]
class Contrastive(SimCLR):
    def lr_scheduler_step(self, scheduler, index, metric):
        scheduler.step()
model = Contrastive(gpus=1, num_samples=32, batch_size=8, dataset="cifar10", arch="resnet18", hidden_mlp=512,
                    feat_dim=16,
               warmup_epochs=1, max_epochs=10, first_conv=False, maxpool1=False)
pytorch_lightning.Trainer(**APEX).fit(model, torch.utils.data.DataLoader(data, batch_size=8))
"""
)
SPEECH = """
import nemo
import nemo.collections.asr as asr
factory = nemo.core.NeuralModuleFactory(placement=nemo.core.DeviceType.GPU, log_dir="log",
                                        optimization_level=nemo.core.Optimization.mxprO1)
labels = list(" abcdefg")
block = {"filters": 32, "repeat": 2, "kernel": [11], "stride": [1], "dilation": [1], "dropout": 0.1, "residual": True,
         "separable": True}
first = dict(block, repeat=1, stride=[2], residual=False)
data = asr.AudioToTextDataLayer("audio.json", labels, batch_size=8, sample_rate=16000, num_workers=0)
audio, audio_length, text, text_length = data()
to_mel = asr.AudioToMelSpectrogramPreprocessor(features=32, stft_conv=True)
features, length = to_mel(input_signal=audio, length=audio_length)
encoder = asr.JasperEncoder(jasper=[first, block], activation="relu", feat_in=32)
encoded, encoded_length = encoder(audio_signal=features, length=length)
log_probs = asr.JasperDecoderForCTC(feat_in=32, num_classes=len(labels))(encoder_output=encoded)
loss = asr.CTCLossNM(num_classes=len(labels))(
    log_probs=log_probs, targets=text, input_length=encoded_length, target_length=text_length)
shown = nemo.core.SimpleLossLoggerCallback(tensors=[loss], print_func=lambda values: print(values[0].item()))
factory.train([loss], callbacks=[shown], optimization_params={"num_epochs": 4, "lr": 0.01, "grad_norm_clip": 1.0},
              optimizer="novograd")
"""
TACOTRON = """
import nemo
import nemo.collections.asr as asr
import nemo.collections.tts as tts
factory = nemo.core.NeuralModuleFactory(placement=nemo.core.DeviceType.GPU, log_dir="log",
                                        optimization_level=nemo.core.Optimization.mxprO1)
labels = list(" abcdefg")
symbols = len(labels)
data = asr.AudioToTextDataLayer("audio.json", labels, batch_size=8, sample_rate=16000, num_workers=0, bos_id=symbols,
                                eos_id=symbols + 1, pad_id=symbols + 2)
audio, audio_length, text, text_length = data()
to_mel = asr.AudioToMelSpectrogramPreprocessor(sample_rate=16000, stft_conv=True, features=20, pad_value=-11.52,
                                               normalize=None,
                                               preemph=None, dither=0.0, mag_power=1.0, log_zero_guard_type="clamp",
                                               log_zero_guard_value=1e-5)
mel, mel_length = to_mel(input_signal=audio, length=audio_length)
embedded = tts.TextEmbedding(symbols + 3, 32)(char_phone=text)
encoded = tts.Tacotron2Encoder(2, 32, 5)(char_phone_embeddings=embedded, embedding_length=text_length)
decoder = tts.Tacotron2Decoder(20, 1, 32, 0.5, 16, 100, 32, 0.1, 0.1, 32, 16, 4, 5)
output, gate, alignments = decoder(char_phone_encoded=encoded, encoded_length=text_length, mel_target=mel)
postnet = tts.Tacotron2Postnet(20, 32, 5, 2)(mel_input=output)
gate_target = tts.MakeGate()(mel_target=mel, target_len=mel_length)
loss = tts.Tacotron2Loss()(mel_out=output, mel_out_postnet=postnet, gate_out=gate, mel_target=mel,
                           gate_target=gate_target, target_len=mel_length, seq_len=audio_length)
shown = nemo.core.SimpleLossLoggerCallback(tensors=[loss], print_func=lambda values: print(values[0].item()))
factory.train([loss], callbacks=[shown], optimization_params={"num_epochs": 4, "lr": 0.001, "grad_norm_clip": 1.0},
              optimizer="adam")
"""
WAVEGLOW = """
import nemo
import nemo.collections.asr as asr
import nemo.collections.tts as tts
factory = nemo.core.NeuralModuleFactory(placement=nemo.core.DeviceType.GPU, log_dir="log",
                                        optimization_level=nemo.core.Optimization.mxprO1)
data = tts.AudioDataLayer("audio.json", n_segments=4000, batch_size=4, sample_rate=16000, num_workers=0)
audio, audio_length = data()
to_mel = asr.AudioToMelSpectrogramPreprocessor(sample_rate=16000, stft_conv=True, features=20, window_size=None,
                                               window_stride=None, n_window_size=1024, n_window_stride=256,
                                               n_fft=1024, normalize=None, preemph=None, dither=0.0, mag_power=1.0,
                                               log_zero_guard_type="clamp", log_zero_guard_value=1e-5)
mel, _ = to_mel(input_signal=audio, length=audio_length)
flows = tts.WaveGlowNM(16000, n_mel_channels=20, n_flows=4, n_early_every=2, n_wn_layers=2, n_wn_channels=16)
output, log_s, log_determinant = flows(mel_spectrogram=mel, audio=audio)
loss = tts.WaveGlowLoss(16000)(z=output, log_s_list=log_s, log_det_W_list=log_determinant)
shown = nemo.core.SimpleLossLoggerCallback(tensors=[loss], print_func=lambda values: print(values[0].item()))
factory.train([loss], callbacks=[shown], optimization_params={"num_epochs": 2, "lr": 0.001}, optimizer="adam")
"""
SUMMARIES = """
import random
import torch
import transformers
config = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                               decoder_start_token_id=0)
model = transformers.T5ForConditionalGeneration(config)
rng = random.Random(0)
data = []
for _ in range(160):
    tokens = [rng.randrange(2, 64) for _ in range(10)]
    data.append({"input_ids": tokens, "attention_mask": [1] * 10, "labels": tokens[:5]})
arguments = transformers.TrainingArguments(
    "results", max_steps=20, per_device_train_batch_size=8, gradient_accumulation_steps=2, learning_rate=3e-3, seed=0,
    fp16=True, fp16_opt_level="O1", half_precision_backend="apex", report_to=[], save_steps=1000, logging_steps=5)
transformers.Trainer(model, arguments, train_dataset=data,
                     data_collator=transformers.default_data_collator).train()
"""
IMAGES = """
import timm
import timm.loss
import timm.optim
import torch
from apex import amp
from timm.utils import ApexScaler
model = timm.create_model("efficientnet_lite0", num_classes=4, pretrained=False).cuda()
optimizer = timm.optim.create_optimizer_v2(model, "fusedlamb", learning_rate=0.002, weight_decay=0.01)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
loss_scaler = ApexScaler()
mix = timm.data.Mixup(mixup_alpha=0.2, num_classes=4)
soft = timm.loss.SoftTargetCrossEntropy()
for step in range(16):
    targets = torch.randint(4, (16,)).cuda()
    images = torch.randn(16, 3, 64, 64).cuda() * 0.3 + targets.view(-1, 1, 1, 1).float()
    images, targets = mix(images, targets)
    loss = soft(model(images), targets)
    optimizer.zero_grad()
    loss_scaler(loss, optimizer, clip_grad=1.0, parameters=timm.models.model_parameters(model), create_graph=False)
"""
TAPE_TRAIN = "from tape.main import run_train\nrun_train()\n"
TAPE = """
{"vocab_size": 30, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
 "num_labels": 20}
"""
MOLECULES = """
import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

def molecule(index, seed):
    rng = torch.Generator().manual_seed(100 * index + seed)
    atoms = torch.arange(8) % (index % 5 + 2)
    atoms[torch.randint(8, (2,), generator=rng)] = 118
    ring = torch.arange(8)
    edges = torch.stack([torch.cat([ring, (ring + 1) % 8]), torch.cat([(ring + 1) % 8, ring])])
    bonds = torch.randint(3, (16, 2), generator=rng)
    return Data(x=torch.stack([atoms, atoms % 3], 1), edge_index=edges, edge_attr=bonds)

class MoleculeDatasetWrapper:
    def __init__(self, batch_size, **options):
        self.pairs = [(molecule(index, 0), molecule(index, 1)) for index in range(64)]
        self.batch_size = batch_size
    def get_data_loaders(self):
        return [DataLoader(part, batch_size=self.batch_size) for part in (self.pairs, self.pairs[:16])]
"""
NT_XENT = """
import torch

class NTXentLoss(torch.nn.Module):
    def __init__(self, device, batch_size, temperature, use_cosine_similarity):
        super().__init__()
        self.temperature = temperature
    def forward(self, zis, zjs):
        values = torch.cat([zis, zjs])
        scores = values @ values.t() / self.temperature
        scores = scores - torch.eye(len(scores), device=scores.device) * 1e4
        pairs = torch.arange(len(scores), device=scores.device).roll(len(zis))
        return torch.nn.functional.cross_entropy(scores, pairs)
"""
MOLCLR = """
{batch_size: 16, warm_up: 1, epochs: 5, load_model: None, eval_every_n_epochs: 1, save_every_n_epochs: 5,
 log_every_n_steps: 4, fp16_precision: True, init_lr: 0.001, weight_decay: "1e-5", gpu: "cuda:0", model_type: gin,
 aug: node, loss: {temperature: 0.1, use_cosine_similarity: True}, dataset: {num_workers: 0},
 model: {num_layer: 3, emb_dim: 32, feat_dim: 32, drop_ratio: 0.1, pool: mean}}
"""
