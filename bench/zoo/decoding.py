"""Inference of language models, token by token."""

import models
import torch
import transformers
from language import _gpt2_config, _llama_config
from program import Program, forever, words
from torch import nn
from torch.nn import functional as F


def gpt2_dynamic_cache(device, size, graphed):
    model = transformers.GPT2LMHeadModel(_gpt2_config(size)).to(device).eval()
    prompts = words(size(1, 4), 8, model.config.vocab_size, device)
    new_tokens = size(30, 200)

    @graphed
    @torch.no_grad()
    def decode(input_ids, past_key_values):
        outputs = model(input_ids=input_ids, past_key_values=past_key_values, use_cache=True)
        return outputs.logits[:, -1].argmax(dim=-1, keepdim=True), outputs.past_key_values

    def loop():
        for (prompt,) in forever(prompts):
            with torch.no_grad():
                outputs = model(input_ids=prompt, use_cache=True)
            token, past = outputs.logits[:, -1].argmax(dim=-1, keepdim=True), outputs.past_key_values
            for _ in range(new_tokens):
                token, past = decode(token, past)
                yield token

    return Program(loop, (model,), model)


def llama_static_cache(device, size, graphed):
    model = transformers.LlamaForCausalLM(_llama_config(size)).to(device).eval()
    prompts = words(size(1, 4), 8, model.config.vocab_size, device)
    new_tokens = size(30, 200)

    def decode_one_tokens(model, cur_token, position_ids, past_key_values):
        logits = model(cur_token, position_ids=position_ids, past_key_values=past_key_values, return_dict=False, use_cache=True)[0]
        return torch.argmax(logits[:, -1], dim=-1)[:, None]

    decode = graphed(decode_one_tokens)

    def loop():
        for (prompt,) in forever(prompts):
            with torch.no_grad():
                cache = transformers.StaticCache(config=model.config, max_cache_len=8 + new_tokens + 1)
                logits = model(prompt, past_key_values=cache, return_dict=False, use_cache=True)[0]
                token = torch.argmax(logits[:, -1], dim=-1)[:, None]
                position_ids = torch.tensor([[prompt.shape[1]]], device=device)
                for _ in range(new_tokens):
                    token = decode(model, token, position_ids, cache)
                    position_ids = position_ids + 1
                    yield token

    return Program(loop, (model,), model)


class KVCache(nn.Module):
    def __init__(self, batch, length, heads, width):
        super().__init__()
        self.register_buffer("k_cache", torch.zeros(batch, heads, length, width))
        self.register_buffer("v_cache", torch.zeros(batch, heads, length, width))

    def update(self, input_pos, k_val, v_val):
        k_out, v_out = self.k_cache, self.v_cache
        k_out[:, :, input_pos] = k_val
        v_out[:, :, input_pos] = v_val
        return k_out, v_out


class DecoderBlock(nn.Module):
    def __init__(self, batch, length, heads, dim):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.ffn_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.wqkv, self.wo = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.w1, self.w2 = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)
        self.kv_cache = KVCache(batch, length, heads, dim // heads)

    def forward(self, x, input_pos, mask):
        b, s, d = x.shape
        q, k, v = self.wqkv(self.attention_norm(x)).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        k, v = self.kv_cache.update(input_pos, k, v)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.wo(y.transpose(1, 2).reshape(b, s, d))
        return x + self.w2(F.silu(self.w1(self.ffn_norm(x))))


class Decoder(nn.Module):
    def __init__(self, vocabulary, layers, heads, dim, batch, length):
        super().__init__()
        self.tok_embeddings, self.positions = nn.Embedding(vocabulary, dim), nn.Embedding(length, dim)
        self.layers = nn.ModuleList([DecoderBlock(batch, length, heads, dim) for _ in range(layers)])
        self.norm, self.output = nn.RMSNorm(dim), nn.Linear(dim, vocabulary, bias=False)
        self.register_buffer("causal_mask", torch.tril(torch.ones(length, length, dtype=torch.bool)))

    def forward(self, idx, input_pos):
        mask = self.causal_mask[None, None, input_pos]
        x = self.tok_embeddings(idx) + self.positions(input_pos)
        for layer in self.layers:
            x = layer(x, input_pos, mask)
        return self.output(self.norm(x))


def multinomial_sample_one_no_sync(probs_sort):
    q = torch.empty_like(probs_sort).exponential_(1)
    return torch.argmax(probs_sort / q, dim=-1, keepdim=True).to(dtype=torch.int)


def logits_to_probs(logits, temperature=1.0, top_k=None):
    logits = logits / max(temperature, 1e-5)
    if top_k is not None:
        v, _ = torch.topk(logits, min(top_k, logits.size(-1)))
        pivot = v.select(-1, -1).unsqueeze(-1)
        logits = torch.where(logits < pivot, -float("Inf"), logits)
    return torch.nn.functional.softmax(logits, dim=-1)


def gpt_fast(device, size, graphed):
    vocabulary, layers, heads, dim, length = size((100, 2, 2, 32, 48), (32_000, 12, 12, 768, 1024))
    model = Decoder(vocabulary, layers, heads, dim, 1, length).to(device).eval()
    prompts = words(1, 8, vocabulary, device)

    def sample(logits, temperature=0.8, top_k=20):
        probs = logits_to_probs(logits[:, -1], temperature, top_k)
        return multinomial_sample_one_no_sync(probs), probs

    @graphed
    @torch.no_grad()
    def decode_one_token(model, x, input_pos, **sampling_kwargs):
        assert input_pos.shape[-1] == 1
        logits = model(x, input_pos)
        return sample(logits, **sampling_kwargs)

    def loop():
        for (prompt,) in forever(prompts):
            with torch.no_grad():
                cur_token, _ = sample(model(prompt, torch.arange(8, device=device)))
            input_pos = torch.tensor([8], device=device, dtype=torch.int)
            for _ in range(length - 9):
                next_token, next_prob = decode_one_token(model, cur_token, input_pos, temperature=0.8, top_k=20)
                input_pos += 1
                cur_token = next_token.clone()
                yield next_token, next_prob

    return Program(loop, (model,), model)


def gpt2_position(device, size, graphed):
    sizes = size((100, 2, 2, 32, 48), (50_257, 12, 12, 768, 1024))
    model = models.PositionGPT2(*sizes).to(device).eval()

    @graphed
    @torch.no_grad()
    def decode(token, position):
        return model(token, position)[:, -1].argmax(dim=-1, keepdim=True)

    def loop():
        while True:
            model.mask.fill_(float("-inf"))
            token = torch.zeros(1, 1, dtype=torch.long, device=device)
            for position in range(sizes[-1]):
                token = decode(token, position)
                yield token

    return Program(loop, (model,), model)


def greedy_until_end(device, size, graphed):
    model = transformers.GPT2LMHeadModel(_gpt2_config(size)).to(device).eval()
    prompts = words(1, 8, model.config.vocab_size, device)
    end, most = 7, size(8, 32)

    @graphed
    @torch.no_grad()
    def generate(input_ids):
        for _ in range(most):
            next_token = model(input_ids=input_ids, use_cache=False).logits[:, -1].argmax(dim=-1, keepdim=True)
            input_ids = torch.cat([input_ids, next_token], dim=1)
            if next_token.item() == end:
                break
        return input_ids

    def loop():
        for (prompt,) in forever(prompts):
            yield generate(prompt)

    return Program(loop, (model,), model)


def prefill(device, size, graphed):
    model = transformers.GPT2LMHeadModel(_gpt2_config(size)).to(device).eval()
    prompts = words(size(1, 4), size(16, 256), model.config.vocab_size, device)

    @graphed
    @torch.inference_mode()
    def forward(input_ids):
        return model(input_ids=input_ids, use_cache=True)

    def loop():
        for (prompt,) in forever(prompts):
            outputs = forward(prompt)
            yield outputs.logits[:, -1], [(layer.keys, layer.values) for layer in outputs.past_key_values.layers]

    return Program(loop, (model,), model)
