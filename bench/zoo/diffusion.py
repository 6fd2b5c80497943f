"""Diffusion, flows and autoencoders."""

import copy
import math
from collections import OrderedDict

import numpy as np
import torch
from program import Program, forever, images
from torch import nn
from torch.nn import functional as F


class SinusoidalPositionEmbeddings(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, time):
        device = time.device
        half_dim = self.dim // 2
        embeddings = math.log(10000) / (half_dim - 1)
        embeddings = torch.exp(torch.arange(half_dim, device=device) * -embeddings)
        embeddings = time[:, None] * embeddings[None, :]
        return torch.cat((embeddings.sin(), embeddings.cos()), dim=-1)


class ResnetBlock(nn.Module):
    def __init__(self, dim, dim_out, time_emb_dim, groups=4):
        super().__init__()
        self.mlp = nn.Sequential(nn.SiLU(), nn.Linear(time_emb_dim, dim_out * 2))
        self.proj1, self.norm1 = nn.Conv2d(dim, dim_out, 3, padding=1), nn.GroupNorm(groups, dim_out)
        self.proj2, self.norm2 = nn.Conv2d(dim_out, dim_out, 3, padding=1), nn.GroupNorm(groups, dim_out)
        self.res_conv = nn.Conv2d(dim, dim_out, 1) if dim != dim_out else nn.Identity()

    def forward(self, x, time_emb):
        scale, shift = self.mlp(time_emb)[:, :, None, None].chunk(2, dim=1)
        h = F.silu(self.norm1(self.proj1(x)) * (scale + 1) + shift)
        h = F.silu(self.norm2(self.proj2(h)))
        return h + self.res_conv(x)


class LinearAttention(nn.Module):
    def __init__(self, dim, heads=4, dim_head=8):
        super().__init__()
        self.scale, self.heads = dim_head**-0.5, heads
        self.norm = nn.GroupNorm(1, dim)
        self.to_qkv = nn.Conv2d(dim, heads * dim_head * 3, 1, bias=False)
        self.to_out = nn.Sequential(nn.Conv2d(heads * dim_head, dim, 1), nn.GroupNorm(1, dim))

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = (t.reshape(b, self.heads, -1, h * w) for t in self.to_qkv(self.norm(x)).chunk(3, dim=1))
        q, k = q.softmax(dim=-2) * self.scale, k.softmax(dim=-1)
        context = torch.einsum("b h d n, b h e n -> b h d e", k, v)
        out = torch.einsum("b h d e, b h d n -> b h e n", context, q)
        return self.to_out(out.reshape(b, -1, h, w)) + x


class Unet(nn.Module):
    def __init__(self, dim, dim_mults=(1, 2), channels=3):
        super().__init__()
        dims = [dim, *(dim * m for m in dim_mults)]
        time_dim = dim * 4
        self.init_conv = nn.Conv2d(channels, dim, 1)
        self.time_mlp = nn.Sequential(SinusoidalPositionEmbeddings(dim), nn.Linear(dim, time_dim), nn.GELU(),
                                      nn.Linear(time_dim, time_dim))
        self.downs = nn.ModuleList([nn.ModuleList([
            ResnetBlock(i, i, time_dim), LinearAttention(i), nn.Conv2d(i, o, 4, 2, 1)]) for i, o in zip(dims, dims[1:])])
        self.mid = ResnetBlock(dims[-1], dims[-1], time_dim)
        self.ups = nn.ModuleList([nn.ModuleList([
            nn.Sequential(nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(o, i, 3, padding=1)),
            ResnetBlock(i * 2, i, time_dim), LinearAttention(i)]) for i, o in reversed(list(zip(dims, dims[1:])))])
        self.final_conv = nn.Conv2d(dim, channels, 1)

    def forward(self, x, time):
        x = self.init_conv(x)
        t = self.time_mlp(time)
        h = []
        for block, attn, downsample in self.downs:
            x = attn(block(x, t))
            h.append(x)
            x = downsample(x)
        x = self.mid(x, t)
        for upsample, block, attn in self.ups:
            x = torch.cat((upsample(x), h.pop()), dim=1)
            x = attn(block(x, t))
        return self.final_conv(x)


class Schedule:
    """Of The Annotated Diffusion Model; linear betas."""

    def __init__(self, timesteps):
        betas = torch.linspace(0.0001, 0.02, timesteps)
        alphas = 1.0 - betas
        alphas_cumprod = torch.cumprod(alphas, axis=0)
        alphas_cumprod_prev = F.pad(alphas_cumprod[:-1], (1, 0), value=1.0)
        self.betas, self.timesteps = betas, timesteps
        self.sqrt_recip_alphas = torch.sqrt(1.0 / alphas)
        self.sqrt_alphas_cumprod = torch.sqrt(alphas_cumprod)
        self.sqrt_one_minus_alphas_cumprod = torch.sqrt(1.0 - alphas_cumprod)
        self.posterior_variance = betas * (1.0 - alphas_cumprod_prev) / (1.0 - alphas_cumprod)


def extract(a, t, x_shape):
    out = a.to(t.device).gather(-1, t)
    return out.reshape(t.shape[0], *((1,) * (len(x_shape) - 1)))


def ddpm(device, size, graphed):
    timesteps = 300
    schedule = Schedule(timesteps)
    model = Unet(size(8, 64), size((1, 2), (1, 2, 4))).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    sqrt_alphas_cumprod = schedule.sqrt_alphas_cumprod.to(device)
    sqrt_one_minus_alphas_cumprod = schedule.sqrt_one_minus_alphas_cumprod.to(device)
    dataloader = [batch[:1] for batch in images(size(2, 64), size(16, 64), 10)]

    def q_sample(x_start, t, noise):
        sqrt_alphas_cumprod_t = extract(sqrt_alphas_cumprod, t, x_start.shape)
        sqrt_one_minus_alphas_cumprod_t = extract(sqrt_one_minus_alphas_cumprod, t, x_start.shape)
        return sqrt_alphas_cumprod_t * x_start + sqrt_one_minus_alphas_cumprod_t * noise

    def p_losses(denoise_model, x_start, t):
        noise = torch.randn_like(x_start)
        x_noisy = q_sample(x_start=x_start, t=t, noise=noise)
        predicted_noise = denoise_model(x_noisy, t)
        return F.smooth_l1_loss(noise, predicted_noise)

    @graphed
    def train_step(batch):
        optimizer.zero_grad()
        batch_size = batch.shape[0]
        batch = batch.to(device)
        t = torch.randint(0, timesteps, (batch_size,), device=device).long()
        loss = p_losses(model, batch, t)
        loss.backward()
        optimizer.step()
        return loss.item()

    def loop():
        for (batch,) in forever(dataloader):
            yield train_step(batch)

    return Program(loop, (model, optimizer), model)


def ddpm_sampling(device, size, graphed):
    timesteps = size(20, 100)
    schedule = Schedule(timesteps)
    model = Unet(size(8, 64), size((1, 2), (1, 2, 4))).to(device).eval()
    shape = (size(2, 16), 3, size(16, 64), size(16, 64))
    betas, posterior_variance = schedule.betas.to(device), schedule.posterior_variance.to(device)
    sqrt_one_minus_alphas_cumprod = schedule.sqrt_one_minus_alphas_cumprod.to(device)
    sqrt_recip_alphas = schedule.sqrt_recip_alphas.to(device)

    @graphed
    @torch.no_grad()
    def p_sample(x, t, t_index):
        betas_t = extract(betas, t, x.shape)
        sqrt_one_minus_alphas_cumprod_t = extract(sqrt_one_minus_alphas_cumprod, t, x.shape)
        sqrt_recip_alphas_t = extract(sqrt_recip_alphas, t, x.shape)
        model_mean = sqrt_recip_alphas_t * (x - betas_t * model(x, t) / sqrt_one_minus_alphas_cumprod_t)
        if t_index == 0:
            return model_mean
        else:
            posterior_variance_t = extract(posterior_variance, t, x.shape)
            noise = torch.randn_like(x)
            return model_mean + torch.sqrt(posterior_variance_t) * noise

    def loop():
        while True:
            img = torch.randn(shape, device=device)
            for i in reversed(range(0, timesteps)):
                img = p_sample(img, torch.full((shape[0],), i, device=device, dtype=torch.long), i)
                yield img

    return Program(loop, (model,), model)


def ddim_sampling(device, size, graphed):
    timesteps, num_inference_steps = 1000, size(20, 50)
    model = Unet(size(8, 64), size((1, 2), (1, 2, 4))).to(device).eval()
    alphas_cumprod = torch.cumprod(1.0 - torch.linspace(0.0001, 0.02, timesteps), dim=0)
    shape = (size(2, 16), 3, size(16, 64), size(16, 64))

    @graphed
    @torch.no_grad()
    def step(sample, timestep):
        prev_timestep = timestep - timesteps // num_inference_steps
        alpha_prod_t = alphas_cumprod[timestep]
        alpha_prod_t_prev = alphas_cumprod[prev_timestep] if prev_timestep >= 0 else torch.tensor(1.0)
        beta_prod_t = 1 - alpha_prod_t
        model_output = model(sample, torch.tensor([timestep] * sample.shape[0], device=sample.device))
        pred_original_sample = (sample - beta_prod_t ** 0.5 * model_output) / alpha_prod_t ** 0.5
        pred_sample_direction = (1 - alpha_prod_t_prev) ** 0.5 * model_output
        return alpha_prod_t_prev ** 0.5 * pred_original_sample + pred_sample_direction

    def loop():
        while True:
            sample = torch.randn(shape).to(device)
            for timestep in range(timesteps - timesteps // num_inference_steps, -1, -(timesteps // num_inference_steps)):
                sample = step(sample, timestep)
                yield sample

    return Program(loop, (model,), model)


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class DiTBlock(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.norm1 = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        self.qkv, self.proj = nn.Linear(hidden_size, 3 * hidden_size), nn.Linear(hidden_size, hidden_size)
        self.norm2 = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(hidden_size, 4 * hidden_size), nn.GELU(approximate="tanh"),
                                 nn.Linear(4 * hidden_size, hidden_size))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden_size, 6 * hidden_size))

    def attn(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C))

    def forward(self, x, c):
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = self.adaLN_modulation(c).chunk(6, dim=1)
        x = x + gate_msa.unsqueeze(1) * self.attn(modulate(self.norm1(x), shift_msa, scale_msa))
        x = x + gate_mlp.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift_mlp, scale_mlp))
        return x


class LabelEmbedder(nn.Module):
    def __init__(self, num_classes, hidden_size, dropout_prob):
        super().__init__()
        self.embedding_table = nn.Embedding(num_classes + 1, hidden_size)
        self.num_classes, self.dropout_prob = num_classes, dropout_prob

    def token_drop(self, labels):
        drop_ids = torch.rand(labels.shape[0], device=labels.device) < self.dropout_prob
        return torch.where(drop_ids, self.num_classes, labels)

    def forward(self, labels, train):
        if train and self.dropout_prob > 0:
            labels = self.token_drop(labels)
        return self.embedding_table(labels)


class DiT(nn.Module):
    def __init__(self, input_size, patch_size, in_channels, hidden_size, depth, num_heads, num_classes):
        super().__init__()
        self.x_embedder = nn.Conv2d(in_channels, hidden_size, patch_size, patch_size)
        self.t_frequency, self.t_mlp = 256, nn.Sequential(nn.Linear(256, hidden_size), nn.SiLU(), nn.Linear(hidden_size, hidden_size))
        self.y_embedder = LabelEmbedder(num_classes, hidden_size, 0.1)
        self.pos_embed = nn.Parameter(torch.randn(1, (input_size // patch_size) ** 2, hidden_size) * 0.02, requires_grad=False)
        self.blocks = nn.ModuleList([DiTBlock(hidden_size, num_heads) for _ in range(depth)])
        self.final = nn.Linear(hidden_size, patch_size * patch_size * in_channels)

    def timestep_embedding(self, t, max_period=10000):
        half = self.t_frequency // 2
        freqs = torch.exp(-math.log(max_period) * torch.arange(start=0, end=half, dtype=torch.float32) / half).to(device=t.device)
        args = t[:, None].float() * freqs[None]
        return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)

    def forward(self, x, t, y):
        x = self.x_embedder(x).flatten(2).transpose(1, 2) + self.pos_embed
        c = self.t_mlp(self.timestep_embedding(t)) + self.y_embedder(y, self.training)
        for block in self.blocks:
            x = block(x, c)
        return self.final(x)


@torch.no_grad()
def update_ema(ema_model, model, decay=0.9999):
    ema_params = OrderedDict(ema_model.named_parameters())
    model_params = OrderedDict(model.named_parameters())
    for name, param in model_params.items():
        ema_params[name].mul_(decay).add_(param.data, alpha=1 - decay)


def dit_ema(device, size, graphed):
    side, patch, channels = 8 if not size.full else 32, 2, 4
    model = DiT(side, patch, channels, *size((32, 2, 2, 10), (384, 12, 6, 1000))).to(device)
    ema = copy.deepcopy(model).to(device)
    for p in ema.parameters():
        p.requires_grad = False
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0)
    sqrt_alphas_cumprod = Schedule(1000).sqrt_alphas_cumprod.to(device)
    sqrt_one_minus = Schedule(1000).sqrt_one_minus_alphas_cumprod.to(device)
    loader = images(size(2, 32), side, size(10, 1000), device, channels=channels)
    update_ema(ema, model, decay=0)
    model.train()
    ema.eval()

    def patches(x):
        b, c, h, w = x.shape
        return x.reshape(b, c, h // patch, patch, w // patch, patch).permute(0, 2, 4, 3, 5, 1).reshape(b, -1, patch * patch * c)

    @graphed
    def train_step(x, y):
        t = torch.randint(0, 1000, (x.shape[0],), device=device)
        noise = torch.randn_like(x)
        x_t = extract(sqrt_alphas_cumprod, t, x.shape) * x + extract(sqrt_one_minus, t, x.shape) * noise
        loss = (model(x_t, t, y) - patches(noise)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        update_ema(ema, model)
        return loss

    def loop():
        for x, y in forever(loader):
            yield train_step(x, y)

    return Program(loop, (model, ema, opt), model)


class Swish(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x) * x


class FlowMLP(nn.Module):
    def __init__(self, input_dim=2, time_dim=1, hidden_dim=128):
        super().__init__()
        self.input_dim, self.time_dim = input_dim, time_dim
        self.main = nn.Sequential(
            nn.Linear(input_dim + time_dim, hidden_dim), Swish(), nn.Linear(hidden_dim, hidden_dim), Swish(),
            nn.Linear(hidden_dim, hidden_dim), Swish(), nn.Linear(hidden_dim, hidden_dim), Swish(), nn.Linear(hidden_dim, input_dim))

    def forward(self, x, t):
        sz = x.size()
        x = x.reshape(-1, self.input_dim)
        t = t.reshape(-1, self.time_dim).float()
        t = t.reshape(-1, 1).expand(x.shape[0], 1)
        return self.main(torch.cat([x, t], dim=1)).reshape(*sz)


def flow_matching(device, size, graphed):
    batch_size = size(256, 4096)
    vf = FlowMLP(hidden_dim=size(64, 512)).to(device)
    optim = torch.optim.Adam(vf.parameters(), lr=0.001)

    def inf_train_gen(batch_size):
        x1 = torch.rand(batch_size, device=device) * 4 - 2
        x2_ = torch.rand(batch_size, device=device) - torch.randint(high=2, size=(batch_size,), device=device) * 2
        x2 = x2_ + (torch.floor(x1) % 2)
        return 1.0 * torch.cat([x1[:, None], x2[:, None]], dim=1) / 0.45

    @graphed
    def train_step(x_1):
        optim.zero_grad()
        x_0 = torch.randn_like(x_1).to(device)
        t = torch.rand(x_1.shape[0]).to(device)
        x_t = (1 - t[:, None]) * x_0 + t[:, None] * x_1
        dx_t = x_1 - x_0
        loss = torch.pow(vf(x_t, t) - dx_t, 2).mean()
        loss.backward()
        optim.step()
        return loss

    def loop():
        while True:
            yield train_step(inf_train_gen(batch_size))

    return Program(loop, (vf, optim), vf)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 400)
        self.fc21 = nn.Linear(400, 20)
        self.fc22 = nn.Linear(400, 20)
        self.fc3 = nn.Linear(20, 400)
        self.fc4 = nn.Linear(400, 784)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 784))
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 784), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


def vae(device, size, graphed):
    model = VAE().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train_loader = [(torch.rand(size(16, 128), 1, 28, 28), torch.zeros(1)) for _ in range(4)]
    model.train()

    @graphed
    def train_step(data):
        data = data.to(device)
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        optimizer.step()
        return loss.item()

    def loop():
        train_loss = 0
        for data, _ in forever(train_loader):
            train_loss += train_step(data)
            yield train_loss

    return Program(loop, (model, optimizer), model)


class VectorQuantizerEMA(nn.Module):
    def __init__(self, num_embeddings, embedding_dim, commitment_cost=0.25, decay=0.99, epsilon=1e-5):
        super().__init__()
        self._embedding_dim, self._num_embeddings = embedding_dim, num_embeddings
        self._embedding = nn.Embedding(num_embeddings, embedding_dim)
        self._embedding.weight.data.normal_()
        self._commitment_cost = commitment_cost
        self.register_buffer("_ema_cluster_size", torch.zeros(num_embeddings))
        self._ema_w = nn.Parameter(torch.Tensor(num_embeddings, embedding_dim))
        self._ema_w.data.normal_()
        self._decay, self._epsilon = decay, epsilon

    def forward(self, inputs):
        inputs = inputs.permute(0, 2, 3, 1).contiguous()
        input_shape = inputs.shape
        flat_input = inputs.view(-1, self._embedding_dim)
        distances = (torch.sum(flat_input**2, dim=1, keepdim=True) + torch.sum(self._embedding.weight**2, dim=1)
                     - 2 * torch.matmul(flat_input, self._embedding.weight.t()))
        encoding_indices = torch.argmin(distances, dim=1).unsqueeze(1)
        encodings = torch.zeros(encoding_indices.shape[0], self._num_embeddings, device=inputs.device)
        encodings.scatter_(1, encoding_indices, 1)
        quantized = torch.matmul(encodings, self._embedding.weight).view(input_shape)
        if self.training:
            self._ema_cluster_size = self._ema_cluster_size * self._decay + (1 - self._decay) * torch.sum(encodings, 0)
            n = torch.sum(self._ema_cluster_size.data)
            self._ema_cluster_size = ((self._ema_cluster_size + self._epsilon) / (n + self._num_embeddings * self._epsilon) * n)
            dw = torch.matmul(encodings.t(), flat_input)
            self._ema_w = nn.Parameter(self._ema_w * self._decay + (1 - self._decay) * dw)
            self._embedding.weight = nn.Parameter(self._ema_w / self._ema_cluster_size.unsqueeze(1))
        e_latent_loss = F.mse_loss(quantized.detach(), inputs)
        loss = self._commitment_cost * e_latent_loss
        quantized = inputs + (quantized - inputs).detach()
        avg_probs = torch.mean(encodings, dim=0)
        perplexity = torch.exp(-torch.sum(avg_probs * torch.log(avg_probs + 1e-10)))
        return loss, quantized.permute(0, 3, 1, 2).contiguous(), perplexity


class VQVAE(nn.Module):
    def __init__(self, num_hiddens, embedding_dim, num_embeddings):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, num_hiddens // 2, 4, 2, 1), nn.ReLU(inplace=True),
                                     nn.Conv2d(num_hiddens // 2, num_hiddens, 4, 2, 1), nn.ReLU(inplace=True),
                                     nn.Conv2d(num_hiddens, embedding_dim, 1))
        self.vq = VectorQuantizerEMA(num_embeddings, embedding_dim)
        self.decoder = nn.Sequential(nn.ConvTranspose2d(embedding_dim, num_hiddens, 4, 2, 1), nn.ReLU(inplace=True),
                                     nn.ConvTranspose2d(num_hiddens, 3, 4, 2, 1))

    def forward(self, x):
        loss, quantized, perplexity = self.vq(self.encoder(x))
        return loss, self.decoder(quantized), perplexity


def vqvae(device, size, graphed):
    model = VQVAE(*size((16, 8, 16), (128, 64, 512))).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=False)
    data_variance = float(np.var(np.random.rand(1000)))
    training_loader = [batch[:1] for batch in images(size(2, 256), 32, 10, device)]
    model.train()

    @graphed
    def train_step(data):
        optimizer.zero_grad()
        vq_loss, data_recon, perplexity = model(data)
        recon_error = F.mse_loss(data_recon, data) / data_variance
        loss = recon_error + vq_loss
        loss.backward()
        optimizer.step()
        return recon_error, perplexity

    def loop():
        for (data,) in forever(training_loader):
            yield train_step(data)

    return Program(loop, (model, optimizer), model)
