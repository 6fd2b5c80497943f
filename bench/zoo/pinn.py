"""Networks that are derived by their inputs: equations, fields, ODEs."""

import torch
from program import Program, forever
from torch import nn
from torch.nn import functional as F


class PINN(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        layers = [nn.Linear(2, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 1))

    def net_u(self, x, t):
        return self.net(torch.cat([x, t], dim=1))

    def net_f(self, x, t, nu=0.01 / torch.pi):
        u = self.net_u(x, t)
        u_t = torch.autograd.grad(u, t, grad_outputs=torch.ones_like(u), retain_graph=True, create_graph=True)[0]
        u_x = torch.autograd.grad(u, x, grad_outputs=torch.ones_like(u), retain_graph=True, create_graph=True)[0]
        u_xx = torch.autograd.grad(u_x, x, grad_outputs=torch.ones_like(u_x), retain_graph=True, create_graph=True)[0]
        return u_t + u * u_x - nu * u_xx


def _burgers(device, size):
    model = PINN(*size((10, 3), (20, 8))).to(device)
    n_u, n_f = size((20, 50), (100, 10_000))
    x_u = (torch.rand(n_u, 1) * 2 - 1).to(device).requires_grad_(True)
    t_u = torch.zeros(n_u, 1, device=device, requires_grad=True)
    u = -torch.sin(torch.pi * x_u.detach())
    x_f = (torch.rand(n_f, 1) * 2 - 1).to(device).requires_grad_(True)
    t_f = torch.rand(n_f, 1).to(device).requires_grad_(True)
    return model, x_u, t_u, u, x_f, t_f


def burgers(device, size, graphed):
    model, x_u, t_u, u, x_f, t_f = _burgers(device, size)
    optimizer_Adam = torch.optim.Adam(model.parameters())

    @graphed
    def train_step():
        u_pred = model.net_u(x_u, t_u)
        f_pred = model.net_f(x_f, t_f)
        loss = torch.mean((u - u_pred) ** 2) + torch.mean(f_pred ** 2)
        optimizer_Adam.zero_grad()
        loss.backward()
        optimizer_Adam.step()
        return loss

    def loop():
        while True:
            yield train_step()

    return Program(loop, (model, optimizer_Adam), model)


def burgers_lbfgs(device, size, graphed):
    model, x_u, t_u, u, x_f, t_f = _burgers(device, size)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=5, history_size=10, line_search_fn="strong_wolfe")

    def loss_func():
        optimizer.zero_grad()
        u_pred = model.net_u(x_u, t_u)
        f_pred = model.net_f(x_f, t_f)
        loss = torch.mean((u - u_pred) ** 2) + torch.mean(f_pred ** 2)
        loss.backward()
        return loss

    @graphed
    def train_step():
        return optimizer.step(loss_func)

    def loop():
        while True:
            yield train_step()

    return Program(loop, (model, optimizer), model)


class ODEFunc(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2))
        for m in self.net.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, mean=0, std=0.1)
                nn.init.constant_(m.bias, val=0)

    def forward(self, t, y):
        return self.net(y**3)


def odeint_rk4(func, y0, t):
    """torchdiffeq's fixed grid with the 3/8 rule."""
    solution = [y0]
    for t0, t1 in zip(t[:-1], t[1:]):
        dt = t1 - t0
        y = solution[-1]
        k1 = func(t0, y)
        k2 = func(t0 + dt / 3, y + dt * k1 / 3)
        k3 = func(t0 + dt * 2 / 3, y + dt * (k2 - k1 / 3))
        k4 = func(t1, y + dt * (k1 - k2 + k3))
        solution.append(y + (k1 + 3 * (k2 + k3) + k4) * dt * 0.125)
    return torch.stack(solution)


def neural_ode(device, size, graphed):
    func = ODEFunc(50).to(device)
    optimizer = torch.optim.RMSprop(func.parameters(), lr=1e-3)
    batch_time, batch_size = size(4, 10), 20
    t = torch.linspace(0.0, 25.0, 1000).to(device)
    true_y = torch.stack([torch.cos(t), torch.sin(t)], dim=1).unsqueeze(1)

    def get_batch():
        s = torch.randint(1000 - batch_time, (batch_size,)).to(device)
        return true_y[s], t[:batch_time], torch.stack([true_y[s + i] for i in range(batch_time)], dim=0)

    @graphed
    def train_step(batch_y0, batch_t, batch_y):
        optimizer.zero_grad()
        pred_y = odeint_rk4(func, batch_y0, batch_t)
        loss = torch.mean(torch.abs(pred_y - batch_y))
        loss.backward()
        optimizer.step()
        return loss

    def loop():
        while True:
            yield train_step(*get_batch())

    return Program(loop, (func, optimizer), func)


class Embedder:
    def __init__(self, multires):
        self.freq_bands = 2.0 ** torch.linspace(0.0, multires - 1, steps=multires)

    def embed(self, inputs):
        return torch.cat([inputs] + [fn(inputs * freq) for freq in self.freq_bands for fn in (torch.sin, torch.cos)], -1)


class NeRF(nn.Module):
    def __init__(self, D, W, input_ch, input_ch_views, skips=(4,)):
        super().__init__()
        self.input_ch, self.input_ch_views, self.skips = input_ch, input_ch_views, skips
        self.pts_linears = nn.ModuleList([nn.Linear(input_ch, W)] + [
            nn.Linear(W, W) if i not in self.skips else nn.Linear(W + input_ch, W) for i in range(D - 1)])
        self.views_linears = nn.ModuleList([nn.Linear(input_ch_views + W, W // 2)])
        self.feature_linear, self.alpha_linear, self.rgb_linear = nn.Linear(W, W), nn.Linear(W, 1), nn.Linear(W // 2, 3)

    def forward(self, x):
        input_pts, input_views = torch.split(x, [self.input_ch, self.input_ch_views], dim=-1)
        h = input_pts
        for i, layer in enumerate(self.pts_linears):
            h = F.relu(layer(h))
            if i in self.skips:
                h = torch.cat([input_pts, h], -1)
        alpha = self.alpha_linear(h)
        h = torch.cat([self.feature_linear(h), input_views], -1)
        for layer in self.views_linears:
            h = F.relu(layer(h))
        return torch.cat([self.rgb_linear(h), alpha], -1)


def raw2outputs(raw, z_vals, rays_d):
    dists = z_vals[..., 1:] - z_vals[..., :-1]
    dists = torch.cat([dists, torch.Tensor([1e10]).to(raw.device).expand(dists[..., :1].shape)], -1)
    dists = dists * torch.norm(rays_d[..., None, :], dim=-1)
    rgb = torch.sigmoid(raw[..., :3])
    alpha = 1.0 - torch.exp(-F.relu(raw[..., 3]) * dists)
    transmittance = torch.cumprod(torch.cat([torch.ones((alpha.shape[0], 1)).to(raw.device), 1.0 - alpha + 1e-10], -1), -1)[:, :-1]
    return torch.sum((alpha * transmittance)[..., None] * rgb, -2)


def nerf(device, size, graphed):
    embed_fn, embeddirs_fn = Embedder(10), Embedder(4)
    model = NeRF(*size((3, 32), (8, 256)), 63, 27, skips=size((1,), (4,))).to(device)
    optimizer = torch.optim.Adam(params=list(model.parameters()), lr=5e-4, betas=(0.9, 0.999))
    N_rand, N_samples, near, far = *size((16, 8), (1024, 64)), 2.0, 6.0
    lrate, lrate_decay, global_step = 5e-4, 250, 0
    img2mse = lambda x, y: torch.mean((x - y) ** 2)
    mse2psnr = lambda x: -10.0 * torch.log(x) / torch.log(torch.Tensor([10.0]).to(device))
    loader = [(torch.randn(N_rand, 3).to(device), torch.randn(N_rand, 3).to(device), torch.rand(N_rand, 3).to(device))
              for _ in range(4)]

    def render_rays(rays_o, rays_d):
        viewdirs = rays_d / torch.norm(rays_d, dim=-1, keepdim=True)
        t_vals = torch.linspace(0.0, 1.0, steps=N_samples).to(device)
        z_vals = (near * (1.0 - t_vals) + far * t_vals).expand([rays_o.shape[0], N_samples])
        mids = 0.5 * (z_vals[..., 1:] + z_vals[..., :-1])
        upper = torch.cat([mids, z_vals[..., -1:]], -1)
        lower = torch.cat([z_vals[..., :1], mids], -1)
        t_rand = torch.rand(z_vals.shape).to(device)
        z_vals = lower + (upper - lower) * t_rand
        pts = rays_o[..., None, :] + rays_d[..., None, :] * z_vals[..., :, None]
        embedded = embed_fn.embed(pts.reshape(-1, 3))
        embedded_dirs = embeddirs_fn.embed(viewdirs[:, None].expand(pts.shape).reshape(-1, 3))
        raw = model(torch.cat([embedded, embedded_dirs], -1)).reshape(*pts.shape[:-1], 4)
        return raw2outputs(raw, z_vals, rays_d)

    @graphed
    def train_step(rays_o, rays_d, target_s):
        nonlocal global_step
        rgb = render_rays(rays_o, rays_d)
        optimizer.zero_grad()
        img_loss = img2mse(rgb, target_s)
        psnr = mse2psnr(img_loss)
        img_loss.backward()
        optimizer.step()
        decay_rate = 0.1
        decay_steps = lrate_decay * 1000
        new_lrate = lrate * (decay_rate ** (global_step / decay_steps))
        for param_group in optimizer.param_groups:
            param_group["lr"] = new_lrate
        global_step += 1
        return img_loss.item(), psnr.item()

    def loop():
        for rays_o, rays_d, target_s in forever(loader):
            yield *train_step(rays_o, rays_d, target_s), global_step

    return Program(loop, (model, optimizer), model)
