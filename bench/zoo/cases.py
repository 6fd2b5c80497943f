"""The zoo: training and inference steps that people have written, and of what class each is. The classes were set down before
anything was made to replay.

A step *depends on values* if a value on the device decides which operations run, or which numbers they are given: it replays
where the value mostly leads the same way. All others are *static*, also those that hand a value to the host and go on without it, and those with a GradScaler, which
skips one call in many.
"""

import dataclasses

STATIC = "static"
VALUES = "depends on values"

READ = "reads at its end"
SCHEDULER = "scheduler.step() inside"
SCALER = "fp16 GradScaler"
TO = ".to(device) inside"
COMPILE = "torch.compile as well"


@dataclasses.dataclass(frozen=True)
class Case:
    name: str  # of the function in the file of its family that builds it
    family: str
    kind: str
    source: str
    traits: tuple = ()


def _family(name, *rows):
    return tuple(Case(row[0], name, row[1], row[2], row[3:]) for row in rows)


CASES = (
    *_family(
        "vision",
        ("quickstart", STATIC, "PyTorch's quickstart: MLP on FashionMNIST, SGD", TO, READ),
        ("mnist_adadelta", STATIC, "pytorch/examples/mnist: CNN, Adadelta, StepLR once per epoch", TO, READ),
        ("resnet50_sgd", STATIC, "torchvision's ResNet-50, SGD with momentum and weight decay", COMPILE),
        ("resnet50_reference", STATIC,
         "torchvision's references/classification: label smoothing, GradScaler, clipping, EMA", TO, SCALER),
        ("mobilenetv3", STATIC, "timm's MobileNetV3-Large, AdamW", COMPILE),
        ("efficientnet", STATIC, "timm's EfficientNet-B0, RMSprop as in its paper", TO),
        ("vit_onecycle", STATIC, "timm's ViT, AdamW, OneCycleLR per step, clipping", SCHEDULER, COMPILE),
        ("convnext_ema", STATIC, "torchvision's ConvNeXt-Tiny, AdamW, AveragedModel as EMA"),
        ("swin_scaler", STATIC, "torchvision's Swin-T, AdamW, GradScaler with unscale_ and clipping", SCALER),
        ("densenet_checkpointed", STATIC, "torchvision's DenseNet-121 with memory_efficient=True, SGD"),
        ("cumulative_batchnorm", STATIC,
         "torchvision's ResNet-18 with BatchNorm2d(momentum=None), as torch.optim.swa_utils sets it"),
        ("mixup", STATIC, "facebookresearch/mixup-cifar10: the mixing number drawn by NumPy in the step", TO),
        ("distillation", STATIC, "PyTorch's tutorial on knowledge distillation: teacher and student, Adam", TO, READ),
        ("simclr", VALUES, "sthalles/SimCLR: NT-Xent picks by masks that lie on the device"),
        ("vit_mae", STATIC, "transformers' ViTMAEForPreTraining, AdamW"),
        ("resnet50_inference", STATIC, "torchvision's ResNet-50, eval, torch.inference_mode()", TO, COMPILE),
        ("vit_inference", STATIC, "timm's ViT, eval under autocast, top-5 of a batch", COMPILE),
    ),
    *_family(
        "dense",
        ("deeplabv3_poly", STATIC,
         "torchvision's references/segmentation: DeepLabV3, auxiliary loss, LambdaLR per step", TO, SCHEDULER, READ),
        ("unet_scaler", STATIC, "milesial/Pytorch-UNet: RMSprop, GradScaler, clipping, Dice", TO, SCALER, READ),
        ("fasterrcnn", VALUES, "torchvision's detection fine-tuning tutorial: Faster R-CNN, SGD"),
    ),
    *_family(
        "language",
        ("gpt2", STATIC, "transformers' GPT2LMHeadModel with labels, AdamW", COMPILE),
        ("gpt2_checkpointed", VALUES,
         "transformers' GPT-2, checkpointing, no cache: asks whether sequences are packed", SCHEDULER),
        ("nanogpt", STATIC, "karpathy/nanoGPT: AdamW in two groups (fused on CUDA), rate set by hand, clipping", COMPILE),
        ("nanogpt_scaler", STATIC,
         "karpathy/nanoGPT with float16: gradient accumulation of 4 under a GradScaler", SCALER, READ),
        ("bert_pretraining", STATIC,
         "transformers' BertForMaskedLM on packed text without a mask, AdamW, linear schedule per step", SCHEDULER, READ),
        ("bert_glue", VALUES,
         "transformers' run_glue_no_trainer: the attention mask is asked whether it masks anything", TO, SCHEDULER),
        ("llama_cosine", STATIC,
         "transformers' Llama, AdamW, clipping, cosine schedule per step, bfloat16 autocast", SCHEDULER, COMPILE),
        ("llama_lora", STATIC, "peft's LoRA on transformers' Llama, AdamW on what is trained"),
        ("mixtral", STATIC, "transformers' Mixtral in bfloat16, AdamW"),
        ("clip", STATIC, "transformers' CLIPModel with return_loss, AdamW"),
    ),
    *_family(
        "seq2seq",
        ("t5_adafactor", STATIC, "transformers' T5, its Adafactor with a fixed rate as the documentation of T5 advises"),
        ("whisper", STATIC, "transformers' Whisper fine-tuning: log-mel features and labels, AdamW, clipping"),
        ("annotated_transformer", STATIC,
         "Harvard's Annotated Transformer: label smoothing by KL, Adam, Noam rate per step", SCHEDULER, READ),
        ("gru_translation", STATIC, "PyTorch's translation tutorial: GRU with attention, teacher forcing, two Adams", READ),
        ("deepspeech_ctc", STATIC,
         "assemblyai's speech tutorial: CNN and GRUs, ctc_loss with Python's lengths, OneCycleLR per step", TO, SCHEDULER, READ),
    ),
    *_family(
        "diffusion",
        ("ddpm", STATIC,
         "The Annotated Diffusion Model: U-Net, t and noise drawn in the step, Huber loss, Adam", TO, READ, COMPILE),
        ("ddpm_sampling", STATIC, "The Annotated Diffusion Model: p_sample(x, t, t_index), a Python number per call"),
        ("ddim_sampling", STATIC, "DDIM's update with coefficients taken by a Python index"),
        ("dit_ema", STATIC, "facebookresearch/DiT: AdamW and update_ema over all parameters"),
        ("flow_matching", STATIC, "facebookresearch/flow_matching's first example: MLP on a checkerboard, Adam", COMPILE),
        ("vae", STATIC, "pytorch/examples/vae: Adam, the loss summed up on the host", TO, READ),
        ("vqvae", STATIC, "VQ-VAE with straight-through codes and EMA codebook, Adam"),
    ),
    *_family(
        "gan",
        ("dcgan", STATIC, "pytorch/examples/dcgan: two Adams, five values read on the way", TO),
        ("wgan_gp", STATIC,
         "eriklindernoren/PyTorch-GAN: gradient penalty by autograd.grad, generator every fifth batch", COMPILE),
        ("pix2pix", STATIC, "junyanz/pytorch-CycleGAN-and-pix2pix: requires_grad turned off and on in the step, two Adams"),
        ("cyclegan", STATIC, "eriklindernoren/PyTorch-GAN: a replay buffer with Python's random in the step"),
    ),
    *_family(
        "rl",
        ("dqn_tutorial", VALUES, "PyTorch's DQN tutorial: states that are not final are picked by a mask", READ),
        ("dqn", STATIC, "vwxyzjn/cleanrl: DQN's update, the target moved every so many calls", READ),
        ("td3", STATIC, "vwxyzjn/cleanrl: TD3, the actor every second call"),
        ("ppo", VALUES, "vwxyzjn/cleanrl: PPO; torch.distributions checks its arguments on the host"),
        ("sac", VALUES, "vwxyzjn/cleanrl: SAC, the temperature is read and is a number of the next call"),
    ),
    *_family(
        "recommenders",
        ("dlrm", STATIC, "facebookresearch/dlrm: EmbeddingBags with sparse gradients, SGD"),
        ("ncf", STATIC, "Neural collaborative filtering (He et al.): Adam, batch moved in the step", TO, READ),
        ("ncf_sparse_adam", VALUES, "the same with sparse embeddings: SparseAdam merges indices by value"),
        ("deepfm", STATIC, "DeepFM on Criteo-like fields, Adagrad, L2 by hand"),
        ("two_tower", STATIC, "TensorFlow Recommenders' retrieval in PyTorch: softmax over the batch, AdamW", COMPILE),
        ("sasrec", STATIC, "pmixer/SASRec.pytorch: NumPy arrays in, positions picked by numpy.where on the host", READ),
    ),
    *_family(
        "pinn",
        ("burgers", STATIC, "maziarraissi/PINNs in PyTorch: second derivatives by autograd.grad, Adam", COMPILE),
        ("burgers_lbfgs", VALUES, "the same with LBFGS, whose closure decides how often it runs"),
        ("neural_ode", STATIC, "rtqichen/torchdiffeq's ode_demo with fixed RK4, RMSprop"),
        ("nerf", VALUES, "yenchenlin/nerf-pytorch: rate set by hand; cumprod's backward asks whether a factor is zero", READ),
    ),
    *_family(
        "graph_models",
        ("gcn", STATIC, "tkipf/pygcn: torch.spmm, Adam with weight decay, loss and accuracy read", READ),
        ("gcn_masked", VALUES, "PyG's introduction: the loss over data.train_mask"),
        ("gat", STATIC, "Diego999/pyGAT: dense attention with dropout, Adam"),
        ("gin_batches", STATIC,
         "PyG's graph classification written out: a batch object moved in the step, scatter by index_add", TO),
    ),
    *_family(
        "sequence",
        ("word_lm", STATIC,
         "pytorch/examples/word_language_model: LSTM, hidden state handed on, clipping, weights moved by hand", READ),
        ("packed_lstm", STATIC, "Sentiment LSTM over pack_padded_sequence with lengths on the CPU, Adam", TO),
        ("lstm_forecast", STATIC, "time series LSTM of PyTorch's forums: last state to linear, AdamW", COMPILE),
        ("char_rnn", STATIC,
         "PyTorch's name classification tutorial: nn.RNN, hidden state made in the step, SGD by hand", READ),
        ("transformer_lm", VALUES, "PyTorch's nn.Transformer tutorial: TransformerEncoder compares its mask with the causal one"),
    ),
    *_family(
        "optimizers",
        ("nadam", STATIC, "torchvision's ResNet-18, NAdam, CosineAnnealingLR per step", SCHEDULER),
        ("radam", STATIC, "variational autoencoder's training with RAdam"),
        ("adamax", STATIC, "gated CNN classifier, Adamax, as in Adam's paper"),
        ("asgd_lstm", STATIC, "salesforce/awd-lstm-lm: ASGD with its defaults, clipping"),
        ("rprop", STATIC, "small regression MLP over the full batch, Rprop"),
        ("fused_adamw", STATIC, "timm's ViT, AdamW(fused=True)"),
        ("torch_adafactor", VALUES, "torch.optim.Adafactor, which reads norms of parameters"),
        ("lion", STATIC, "lucidrains/lion-pytorch retyped, on a ViT"),
        ("muon", STATIC, "KellerJordan/Muon retyped: Newton-Schulz for matrices, AdamW for the rest"),
        ("lamb", STATIC, "timm's Lamb on timm's ResNet-26d"),
        ("apex_adam", STATIC, "apex's FusedAdam retyped over torch._foreach, amsgrad off"),
        ("sam", STATIC, "davda54/sam: two passes per step around SGD", READ),
        ("swa", STATIC, "PyTorch's SWA recipe: AveragedModel every call, SWALR per step", SCHEDULER),
        ("accumulation", STATIC, "Hugging Face's accumulation loop: optimizer.step() every fourth call", READ),
    ),
    *_family(
        "amp",
        ("amp_recipe", STATIC, "PyTorch's AMP recipe: MLP, SGD, GradScaler", SCALER, TO),
        ("amp_adam_scheduler", STATIC,
         "ResNet-18, Adam, GradScaler and a scheduler that waits where the scale fell", SCALER, SCHEDULER, READ),
        ("amp_gan", STATIC, "two optimizers under one GradScaler, as PyTorch's AMP examples have it", SCALER),
    ),
    *_family(
        "functional",
        ("per_sample_gradients", STATIC, "PyTorch's tutorial on per-sample gradients: vmap(grad), clipped, SGD by hand"),
        ("maml", STATIC, "MAML on sinusoids by torch.func.functional_call and grad, Adam"),
        ("ensemble", STATIC, "PyTorch's model ensembling tutorial: stack_module_state and vmap, inference"),
    ),
    *_family(
        "decoding",
        ("gpt2_dynamic_cache", STATIC, "transformers' GPT-2: a token per call, DynamicCache handed in and out"),
        ("llama_static_cache", STATIC, "transformers' Llama: a token per call, StaticCache, position as a tensor", COMPILE),
        ("gpt_fast", STATIC, "pytorch-labs/gpt-fast: key/value buffers written at input_pos, top-k sampling"),
        ("gpt2_position", STATIC, "GPT-2 written out: an int position, cache written by a slice, additive mask"),
        ("greedy_until_end", VALUES, "greedy decoding that stops at the end token"),
        ("prefill", STATIC, "transformers' GPT-2 over a prompt: ModelOutput with its cache returned"),
    ),
)


def named(name):
    return next(case for case in CASES if case.name == name)
