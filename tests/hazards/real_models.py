"""Audits models of torchvision, timm and transformers: small configurations, random weights, nothing is downloaded.

    real_models.py [--device cpu|cuda] [--json FILE] [NAME...]
    real_models.py --eager              only runs them, without Pianola

Models that are clean must show nothing that breaks a capture or makes numbers wrong; those that are known not to be, from
their source, must show what is expected. A package that is missing is skipped, and said so. Exit code 1 on any difference.
"""

import argparse
import importlib
import importlib.util
import json
import platform
import sys
import time
import traceback
import warnings
from pathlib import Path

import torch
from torch import nn

CASES = []


def case(package, name, expected=()):
    """A function of a device that returns (step, batches). expected: rules of which one has to be found; none: clean."""

    def add(make):
        CASES.append((package, f"{package}/{name}", make, tuple(expected)))
        return make

    return add


def inference(model, *examples):
    """A step that runs the model without gradients, and three batches."""
    model = model.eval().requires_grad_(False)

    @torch.no_grad()
    def step(*inputs):
        return tensors_of(model(*inputs))

    return step, [tuple(example() for example in examples) for _ in range(3)]


def training(model, *examples):
    """A step of forward, backward and SGD, and three batches."""
    model = model.train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)

    def step(*inputs):
        optimizer.zero_grad()
        loss = sum(each.float().square().mean() for each in tensors_of(model(*inputs)))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, [tuple(example() for example in examples) for _ in range(3)]


def tensors_of(result):
    """The floating-point tensors that a model returned."""
    if isinstance(result, torch.Tensor):
        return [result] if result.is_floating_point() else []
    if isinstance(result, dict):
        return [each for value in result.values() for each in tensors_of(value)]
    if isinstance(result, (list, tuple)):
        return [each for value in result for each in tensors_of(value)]
    return []


def images(device, size=32, count=2):
    return lambda: torch.randn(count, 3, size, size, device=device)


def tokens(device, length=6, vocabulary=50, count=2):
    return lambda: torch.randint(2, vocabulary, (count, length), device=device)


def ones(device, length=6, count=2):
    return lambda: torch.ones(count, length, dtype=torch.long, device=device)


# --- torchvision ---


def add_torchvision(name, mode, size=32, **options):
    @case("torchvision", f"{name}, {mode.__name__}")
    def make(device):
        import torchvision

        return mode(torchvision.models.get_model(name, weights=None, **options).to(device), images(device, size))


for vision in ("resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "efficientnet_b0", "regnet_y_400mf", "convnext_tiny"):
    add_torchvision(vision, inference, 64)
    add_torchvision(vision, training, 64)
add_torchvision("squeezenet1_1", training, 64)
add_torchvision("densenet121", inference, 64)
add_torchvision("swin_t", inference, 64)


@case("torchvision", "vit, training")
def _(device):
    from torchvision.models import VisionTransformer

    model = VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=5)
    return training(model.to(device), images(device))


@case("torchvision", "lraspp_mobilenet_v3_large, inference")
def _(device):
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    return inference(lraspp_mobilenet_v3_large(weights=None, weights_backbone=None).to(device), images(device, 64))


@case("torchvision", "ssdlite detection, inference", expected=("PG101", "PG102", "PG105", "PG106"))
def _(device):
    """Keeps the boxes above a threshold, by a mask, and suppresses those that overlap: sizes in the data."""
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3).to(device)
    return inference(model, lambda: list(torch.rand(1, 3, 64, 64, device=device)))


@case("torchvision", "nms", expected=("PG101", "PG103", "PG105", "PG501", "PG502", "PG505", "PG1203"))
def _(device):
    """The number of boxes that are left is in the data."""
    from torchvision.ops import nms

    corners = [torch.rand(30, 2, device=device) * 4 for _ in range(3)]
    batches = [(torch.cat([corner, corner + 1], dim=1), torch.rand(30, device=device)) for corner in corners]
    return (lambda boxes, scores: boxes[nms(boxes, scores, 0.1)]), batches


# --- timm ---


def add_timm(name, mode, size=32, **options):
    with_dropout = " with dropout" if "drop_rate" in options else ""

    @case("timm", f"{name}, {mode.__name__}{with_dropout}")
    def make(device):
        import timm

        return mode(timm.create_model(name, pretrained=False, num_classes=5, **options).to(device), images(device, size))


for vision in ("resnet18", "efficientnet_lite0", "mobilenetv3_small_050", "convnext_atto", "resnext50_32x4d", "regnetx_002"):
    add_timm(vision, inference, 64)
    add_timm(vision, training, 64)
for vision in ("vit_tiny_patch16_224", "deit_tiny_patch16_224", "mixer_s32_224", "gmlp_ti16_224"):
    add_timm(vision, inference, 64, img_size=64)
    add_timm(vision, training, 64, img_size=64)
add_timm("vit_tiny_patch16_224", training, 64, img_size=64, drop_rate=0.1, drop_path_rate=0.1)
add_timm("poolformer_s12", inference, 64)
add_timm("ghostnet_050", inference, 64)


@case("timm", "edgenext_xx_small, inference", expected=("PG202",))
def _(device):
    """Makes its position encoding on the CPU in every forward."""
    import timm

    return inference(timm.create_model("edgenext_xx_small", pretrained=False, num_classes=5).to(device), images(device, 64))


# --- transformers ---

LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
SMALL = {**LAYERS, "vocab_size": 50}


def add_encoder(name, mode, **options):
    @case("transformers", f"{name}, {mode.__name__}")
    def make(device):
        import transformers

        config = getattr(transformers, f"{name}Config")(**{**SMALL, "max_position_embeddings": 40, **options})
        return mode(getattr(transformers, f"{name}Model")(config).to(device), tokens(device))


def causal(device, length=6, count=2):
    """A mask of four dimensions, which a decoder takes as it is; of fewer, it asks what is in it."""
    return lambda: torch.ones(length, length, dtype=torch.bool, device=device).tril().expand(count, 1, -1, -1).contiguous()


def add_decoder(name, mode, **options):
    @case("transformers", f"{name}ForCausalLM, {mode.__name__}")
    def make(device):
        import transformers

        config = getattr(transformers, f"{name}Config")(**{**SMALL, "max_position_embeddings": 40, "use_cache": False, **options})
        model = ByKeywords(getattr(transformers, f"{name}ForCausalLM")(config), "input_ids", "attention_mask")
        return mode(model.to(device), tokens(device), causal(device))


for text in ("Bert", "Roberta", "Electra"):
    add_encoder(text, inference)
    add_encoder(text, training)
for text in ("Llama", "Mistral", "Qwen2", "Gemma"):
    add_decoder(text, inference, num_key_value_heads=2, head_dim=8)
    add_decoder(text, training, num_key_value_heads=2, head_dim=8)


@case("transformers", "DistilBertModel, inference")
def _(device):
    from transformers import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(vocab_size=50, dim=16, n_layers=2, n_heads=2, hidden_dim=32)
    return inference(DistilBertModel(config).to(device), tokens(device))


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    special = {"bos_token_id": 1, "eos_token_id": 1, "use_cache": False}
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, **special))


@case("transformers", "GPT2LMHeadModel, training")
def _(device):
    return training(ByKeywords(gpt2(), "input_ids", "attention_mask").to(device), tokens(device), causal(device))


@case("transformers", "GPT2LMHeadModel without a mask, inference", expected=("PG101", "PG102", "PG501", "PG1205"))
def _(device):
    """Asks on the host whether positions are those of one sequence, unless a CUDA capture is open."""
    return inference(gpt2().to(device), tokens(device))


@case("transformers", "GPT2LMHeadModel with a padding mask, inference", expected=("PG101", "PG102", "PG501", "PG1205"))
def _(device):
    """Asks on the host whether anything is padding, unless a CUDA capture is open."""
    return inference(ByKeywords(gpt2(), "input_ids", "attention_mask").to(device), tokens(device), ones(device))


@case("transformers", "ViTModel, training")
def _(device):
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(**LAYERS, image_size=32, patch_size=8)
    return training(ViTModel(config).to(device), images(device))


@case("transformers", "WhisperEncoder, inference")
def _(device):
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        vocab_size=50, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=10, max_target_positions=10,
        use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=1, decoder_start_token_id=1,
    )  # fmt: skip
    return inference(WhisperModel(config).encoder.to(device), lambda: torch.randn(2, 8, 20, device=device))


@case("transformers", "T5Model, inference")
def _(device):
    from transformers import T5Config, T5Model

    config = T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, use_cache=False)
    return inference(ByKeywords(T5Model(config), "input_ids", "decoder_input_ids").to(device), tokens(device), tokens(device))


@case("transformers", "CLIPVisionModel, inference")
def _(device):
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(**LAYERS, image_size=32, patch_size=8)
    return inference(CLIPVisionModel(config).to(device), images(device))


class ByKeywords(nn.Module):
    """Calls a model with keyword arguments."""

    def __init__(self, model, *names):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs):
        return self.model(**dict(zip(self.names, inputs)))


@case("transformers", "generate", expected=("PG101", "PG102", "PG501", "PG105"))
def _(device):
    """After each token the host asks whether all sequences have ended."""
    from transformers import GPT2Config, GPT2LMHeadModel

    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    config = GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=1, n_head=2, **special)
    model = GPT2LMHeadModel(config).to(device).eval().requires_grad_(False)

    def step(prompt):
        return model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=3, do_sample=False)

    return step, [(tokens(device)(),) for _ in range(3)]


@case("transformers", "SwitchTransformersModel, inference", expected=("PG101", "PG105", "PG106", "PG102"))
def _(device):
    """Experts take their tokens by a mask, or those that are hit by nonzero()."""
    from transformers import SwitchTransformersConfig, SwitchTransformersModel

    config = SwitchTransformersConfig(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=2, num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1, num_heads=2, num_experts=2, use_cache=False,
    )  # fmt: skip
    model = ByKeywords(SwitchTransformersModel(config), "input_ids", "decoder_input_ids")
    return inference(model.to(device), tokens(device), tokens(device))


# --- Running ---


def made(make, device):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(torch.device(device, 0) if device == "cuda" else torch.device(device))


def result_of(name, make, expected, device, eager):
    """What became of one model, as JSON has it."""
    result = {"model": name, "expected": list(expected)}
    begin = time.perf_counter()
    try:
        step, batches = made(make, device)
        if eager:
            for batch in batches:
                step(*batch)
            return result
        import pianola

        report = pianola.audit(step, batches=batches, device=device)
    except Exception:
        return {**result, "error": traceback.format_exc()}
    result["seconds"] = round(time.perf_counter() - begin, 3)
    severe = [finding for finding in report.findings if str(finding.severity) in ("breaks capture", "wrong numbers")]
    result["operations"] = report.operations
    result["findings"] = [in_words(finding) for finding in report.findings]
    result["missed"] = bool(expected) and not any(finding.rule in expected for finding in severe)
    result["false_alarms"] = 0 if expected else len(severe)
    return result


def in_words(finding):
    place = f" at {Path(finding.file).name}:{finding.line}" if finding.file else ""
    return f"{finding.rule} {finding.op}{place}: {finding.what}; {finding.evidence}"


def is_wrong(result):
    return "error" in result or bool(result.get("missed") or result.get("false_alarms"))


def print_result(result):
    if "error" in result:
        words = "error\n" + result["error"].rstrip()
    elif result.get("missed"):
        words = f"missed: one of {', '.join(result['expected'])} was expected"
    elif result.get("false_alarms"):
        words = f"{result['false_alarms']} false alarms"
    elif "operations" not in result:
        words = "runs"
    else:
        words = "hazards found" if result["expected"] else "clean"
    print(f"{result['model']}: {words}", flush=True)
    for finding in result.get("findings", ()) if is_wrong(result) else ():
        print(f"  {finding}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--eager", action="store_true", help="only run them, without Pianola")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU")

    results, skipped = [], {}
    for package, name, make, expected in CASES:
        if arguments.names and not any(wanted in name for wanted in arguments.names):
            continue
        if importlib.util.find_spec(package) is None:
            skipped[name] = f"{package} is not installed"
            continue
        results.append(result_of(name, make, expected, arguments.device, arguments.eager))
        print_result(results[-1])
    if not results and not skipped:
        parser.error(f"no model is called {' '.join(arguments.names)}")
    for package in sorted({reason for reason in skipped.values()}):
        print(f"skipped: {package}")
    wrong = sum(is_wrong(result) for result in results)
    print(f"{len(results)} models, {len(skipped)} skipped, {wrong} not as expected")
    if arguments.json and not arguments.eager:
        import pianola

        names = sorted({package for package, *_ in CASES if importlib.util.find_spec(package)})
        packages = {package: importlib.import_module(package).__version__ for package in names}
        arguments.json.write_text(json.dumps({
            "device": arguments.device,
            "device_name": torch.cuda.get_device_name(0) if arguments.device == "cuda" else platform.machine(),
            "versions": {"pianola": pianola.__version__, "torch": torch.__version__, **packages},
            "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]), "skipped": skipped, "models": results}, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
