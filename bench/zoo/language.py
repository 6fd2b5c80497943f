"""Language models, encoders and what is trained beside them: transformers, peft and nanoGPT."""

import inspect
import math
from contextlib import nullcontext

import torch
import transformers
from program import Program, forever, words
from torch import nn
from torch.nn import functional as F
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup


def _gpt2_config(size):
    return transformers.GPT2Config(**size(dict(n_layer=2, n_embd=32, n_head=2, n_positions=64, vocab_size=200), {}))


def _llama_config(size):
    small = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 vocab_size=200, max_position_embeddings=128)
    full = dict(hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=4)
    return transformers.LlamaConfig(**size(small, full))


def gpt2(device, size, graphed):
    model = transformers.GPT2LMHeadModel(_gpt2_config(size)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    loader = words(size(2, 8), size(16, 512), model.config.vocab_size, device)
    model.train()

    @graphed
    def train_step(input_ids):
        optimizer.zero_grad()
        loss = model(input_ids=input_ids, labels=input_ids).loss
        loss.backward()
        optimizer.step()
        return loss

    def loop():
        for (input_ids,) in forever(loader):
            yield train_step(input_ids)

    return Program(loop, (model, optimizer), model)


def gpt2_checkpointed(device, size, graphed):
    model = transformers.GPT2LMHeadModel(_gpt2_config(size)).to(device)
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    lr_scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=100, num_training_steps=10_000)
    loader = words(size(2, 8), size(16, 512), model.config.vocab_size, device)
    model.train()

    @graphed
    def train_step(input_ids):
        outputs = model(input_ids=input_ids, labels=input_ids, use_cache=False)
        loss = outputs.loss
        loss.backward()
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        return loss.detach()

    def loop():
        for (input_ids,) in forever(loader):
            yield train_step(input_ids)

    return Program(loop, (model, optimizer, lr_scheduler), model)


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, dropout):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.resid_dropout = nn.Dropout(dropout)
        self.n_head, self.n_embd, self.dropout = n_head, n_embd, dropout

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=self.dropout if self.training else 0, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class Block(nn.Module):
    def __init__(self, n_embd, n_head, dropout):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head, dropout)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd, bias=False), nn.GELU(), nn.Linear(4 * n_embd, n_embd, bias=False),
                                 nn.Dropout(dropout))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Module):
    def __init__(self, n_layer, n_head, n_embd, block_size, vocab_size, dropout):
        super().__init__()
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(vocab_size, n_embd), wpe=nn.Embedding(block_size, n_embd), drop=nn.Dropout(dropout),
            h=nn.ModuleList([Block(n_embd, n_head, dropout) for _ in range(n_layer)]), ln_f=nn.LayerNorm(n_embd)))
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        device = idx.device
        b, t = idx.size()
        pos = torch.arange(0, t, dtype=torch.long, device=device)
        tok_emb = self.transformer.wte(idx)
        pos_emb = self.transformer.wpe(pos)
        x = self.transformer.drop(tok_emb + pos_emb)
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)

    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        param_dict = {pn: p for pn, p in self.named_parameters() if p.requires_grad}
        decay_params = [p for n, p in param_dict.items() if p.dim() >= 2]
        nodecay_params = [p for n, p in param_dict.items() if p.dim() < 2]
        optim_groups = [{"params": decay_params, "weight_decay": weight_decay}, {"params": nodecay_params, "weight_decay": 0.0}]
        fused_available = "fused" in inspect.signature(torch.optim.AdamW).parameters
        use_fused = fused_available and device_type == "cuda"
        extra_args = dict(fused=True) if use_fused else dict()
        return torch.optim.AdamW(optim_groups, lr=learning_rate, betas=betas, **extra_args)


def _get_lr(it, learning_rate=6e-4, warmup_iters=100, lr_decay_iters=5000, min_lr=6e-5):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    if it > lr_decay_iters:
        return min_lr
    decay_ratio = (it - warmup_iters) / (lr_decay_iters - warmup_iters)
    coeff = 0.5 * (1.0 + math.cos(math.pi * decay_ratio))
    return min_lr + coeff * (learning_rate - min_lr)


def nanogpt(device, size, graphed):
    model = GPT(*size((2, 2, 32, 16, 100, 0.0), (12, 12, 768, 1024, 50304, 0.0))).to(device)
    optimizer = model.configure_optimizers(1e-1, 6e-4, (0.9, 0.95), device)
    grad_clip = 1.0
    ctx = torch.amp.autocast(device_type=device, dtype=torch.bfloat16) if device == "cuda" else nullcontext()
    block, vocabulary = size((16, 100), (1024, 50304))
    train_data = [(x, y) for (x,), (y,) in zip(*(words(size(2, 8), block, vocabulary, device) for _ in range(2)))]
    model.train()

    @graphed
    def train_step(X, Y):
        with ctx:
            logits, loss = model(X, Y)
        loss.backward()
        if grad_clip != 0.0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def loop():
        for iter_num, (X, Y) in enumerate(forever(train_data)):
            lr = _get_lr(iter_num)
            for param_group in optimizer.param_groups:
                param_group["lr"] = lr
            yield train_step(X, Y)

    return Program(loop, (model, optimizer), model)


def nanogpt_scaler(device, size, graphed):
    model = GPT(*size((2, 2, 32, 16, 100, 0.1), (12, 12, 768, 1024, 50304, 0.1))).to(device)
    dtype = "float16" if device == "cuda" else "bfloat16"
    scaler = torch.amp.GradScaler(device, enabled=(dtype == "float16"))
    optimizer = model.configure_optimizers(1e-1, 6e-4, (0.9, 0.95), device)
    ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
    ctx = torch.amp.autocast(device_type=device, dtype=ptdtype)
    gradient_accumulation_steps, grad_clip = 4, 1.0
    block, vocabulary = size((16, 100), (512, 50304))
    train_data = [(x, y) for (x,), (y,) in zip(*(words(size(2, 4), block, vocabulary, count=16) for _ in range(2)))]
    batches = forever(train_data)
    model.train()

    def get_batch():
        x, y = next(batches)
        if device == "cuda":
            return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
        return x.to(device), y.to(device)

    @graphed
    def train_step(micro_batches):
        for X, Y in micro_batches:
            with ctx:
                logits, loss = model(X, Y)
                loss = loss / gradient_accumulation_steps
            scaler.scale(loss).backward()
        if grad_clip != 0.0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss.item() * gradient_accumulation_steps

    def loop():
        iter_num = 0
        while True:
            lr = _get_lr(iter_num)
            for param_group in optimizer.param_groups:
                param_group["lr"] = lr
            yield train_step([get_batch() for _ in range(gradient_accumulation_steps)])
            iter_num += 1

    return Program(loop, (model, optimizer, scaler), model)


def _bert_config(size):
    return transformers.BertConfig(**size(dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                                               vocab_size=200, max_position_embeddings=64), {}))


def bert_pretraining(device, size, graphed):
    model = transformers.BertForMaskedLM(_bert_config(size)).to(device)
    no_decay = ["bias", "LayerNorm.weight"]
    optimizer_grouped_parameters = [
        {"params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)], "weight_decay": 0.01},
        {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(optimizer_grouped_parameters, lr=1e-4)
    lr_scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=50, num_training_steps=10_000)
    loader = []
    for (tokens,) in words(size(2, 32), size(16, 128), model.config.vocab_size, device):
        labels = tokens.masked_fill(torch.rand(tokens.shape).to(device) > 0.15, -100)
        loader.append((tokens, labels))
    model.train()

    @graphed
    def train_step(input_ids, labels):
        outputs = model(input_ids=input_ids, labels=labels)
        loss = outputs.loss
        loss.backward()
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        return loss.detach().float().item()

    def loop():
        for input_ids, labels in forever(loader):
            yield train_step(input_ids, labels)

    return Program(loop, (model, optimizer, lr_scheduler), model)


def bert_glue(device, size, graphed):
    config = _bert_config(size)
    config.num_labels = 2
    model = transformers.BertForSequenceClassification(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    lr_scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=0, num_training_steps=10_000)
    loader = []
    for (tokens,) in words(size(2, 32), size(16, 128), config.vocab_size):
        lengths = torch.randint(8, tokens.shape[1] + 1, (len(tokens), 1))
        loader.append((tokens, (torch.arange(tokens.shape[1]) < lengths).long(), torch.randint(2, (len(tokens),))))
    model.train()

    @graphed
    def train_step(batch):
        batch = {k: v.to(device) for k, v in batch.items()}
        outputs = model(**batch)
        loss = outputs.loss
        loss.backward()
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        return loss.detach()

    def loop():
        for input_ids, attention_mask, labels in forever(loader):
            yield train_step({"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels})

    return Program(loop, (model, optimizer, lr_scheduler), model)


def llama_cosine(device, size, graphed):
    model = transformers.LlamaForCausalLM(_llama_config(size)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=100, num_training_steps=10_000)
    loader = words(size(2, 4), size(16, 1024), model.config.vocab_size, device)
    model.train()

    @graphed
    def train_step(input_ids):
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            loss = model(input_ids=input_ids, labels=input_ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss

    def loop():
        for (input_ids,) in forever(loader):
            yield train_step(input_ids)

    return Program(loop, (model, optimizer, scheduler), model)


def llama_lora(device, size, graphed):
    from peft import LoraConfig, TaskType, get_peft_model

    peft_config = LoraConfig(task_type=TaskType.CAUSAL_LM, r=8, lora_alpha=32, lora_dropout=0.1)
    model = get_peft_model(transformers.LlamaForCausalLM(_llama_config(size)), peft_config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = words(size(2, 4), size(16, 512), model.config.vocab_size, device)
    model.train()

    @graphed
    def train_step(input_ids, labels):
        outputs = model(input_ids=input_ids, labels=labels)
        loss = outputs.loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def loop():
        for (input_ids,) in forever(loader):
            yield train_step(input_ids, input_ids)

    return Program(loop, (model, optimizer), model)


def mixtral(device, size, graphed):
    small = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 vocab_size=200, num_local_experts=4, max_position_embeddings=128)
    full = dict(hidden_size=512, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4)
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**size(small, full))).to(device, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = words(size(2, 4), size(16, 512), model.config.vocab_size, device)
    model.train()

    @graphed
    def train_step(input_ids):
        optimizer.zero_grad()
        loss = model(input_ids=input_ids, labels=input_ids).loss
        loss.backward()
        optimizer.step()
        return loss

    def loop():
        for (input_ids,) in forever(loader):
            yield train_step(input_ids)

    return Program(loop, (model, optimizer), model)


def clip(device, size, graphed):
    tower = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    config = transformers.CLIPConfig(
        text_config=dict(tower, vocab_size=200, max_position_embeddings=16, eos_token_id=2, bos_token_id=0, pad_token_id=1),
        vision_config=dict(tower, image_size=32, patch_size=8), projection_dim=16) if not size.full else transformers.CLIPConfig()
    model = transformers.CLIPModel(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2)
    side = config.vision_config.image_size
    length = config.text_config.max_position_embeddings
    loader = [(tokens, torch.randn(len(tokens), 3, side, side).to(device))
              for (tokens,) in words(size(2, 32), length, config.text_config.vocab_size, device)]
    model.train()

    @graphed
    def train_step(input_ids, pixel_values):
        optimizer.zero_grad()
        loss = model(input_ids=input_ids, pixel_values=pixel_values, return_loss=True).loss
        loss.backward()
        optimizer.step()
        return loss

    def loop():
        for input_ids, pixel_values in forever(loader):
            yield train_step(input_ids, pixel_values)

    return Program(loop, (model, optimizer), model)
