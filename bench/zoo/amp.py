"""Mixed precision with a GradScaler; on the CPU the scaler is off, as users have it."""

import torch
import torchvision
from program import Program, forever, images
from torch import nn
from torch.nn import functional as F


def amp_recipe(device, size, graphed):
    def make_model(in_size, out_size, num_layers):
        layers = []
        for _ in range(num_layers - 1):
            layers.append(torch.nn.Linear(in_size, in_size))
            layers.append(torch.nn.ReLU())
        layers.append(torch.nn.Linear(in_size, out_size))
        return torch.nn.Sequential(*tuple(layers)).to(device)

    batch_size, in_size, out_size, num_layers = size((16, 32, 32, 3), (512, 4096, 4096, 3))
    use_amp = device == "cuda"
    data = [(torch.randn(batch_size, in_size), torch.randn(batch_size, out_size)) for _ in range(4)]
    loss_fn = torch.nn.MSELoss().to(device)
    net = make_model(in_size, out_size, num_layers)
    opt = torch.optim.SGD(net.parameters(), lr=0.001)
    scaler = torch.amp.GradScaler(device, enabled=use_amp)

    @graphed
    def train_step(input, target):
        input, target = input.to(device), target.to(device)
        with torch.autocast(device_type=device, dtype=torch.float16, enabled=use_amp):
            output = net(input)
            loss = loss_fn(output, target)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        return loss

    def loop():
        for input, target in forever(data):
            yield train_step(input, target)

    return Program(loop, (net, opt, scaler), net)


def amp_adam_scheduler(device, size, graphed):
    model = torchvision.models.resnet18(num_classes=100).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10_000)
    use_amp = device == "cuda"
    scaler = torch.amp.GradScaler(device, enabled=use_amp)
    loader = images(size(2, 64), size(32, 224), 100, device)
    model.train()

    @graphed
    def train_step(x, y):
        optimizer.zero_grad()
        with torch.autocast(device_type=device, dtype=torch.float16, enabled=use_amp):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        skip_lr_sched = scale > scaler.get_scale()
        if not skip_lr_sched:
            scheduler.step()
        return loss.item()

    def loop():
        for x, y in forever(loader):
            yield train_step(x, y)

    return Program(loop, (model, optimizer, scheduler, scaler), model)


def amp_gan(device, size, graphed):
    latent, width, side = size((16, 32, 16), (128, 1024, 64))
    generator = nn.Sequential(nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, side * side), nn.Tanh()).to(device)
    critic = nn.Sequential(nn.Flatten(), nn.Linear(side * side, width), nn.LeakyReLU(0.2), nn.Linear(width, 1)).to(device)
    optimizer_g = torch.optim.AdamW(generator.parameters(), lr=2e-4)
    optimizer_d = torch.optim.AdamW(critic.parameters(), lr=2e-4)
    use_amp = device == "cuda"
    scaler = torch.amp.GradScaler(device, enabled=use_amp)
    loader = [batch[:1] for batch in images(size(8, 256), side, 10, device, channels=1)]

    @graphed
    def train_step(real):
        noise = torch.randn(real.shape[0], latent, device=device)
        with torch.autocast(device_type=device, dtype=torch.float16, enabled=use_amp):
            fake = generator(noise)
            d_real, d_fake = critic(real), critic(fake.detach())
            loss_d = F.softplus(-d_real).mean() + F.softplus(d_fake).mean()
        optimizer_d.zero_grad()
        scaler.scale(loss_d).backward()
        scaler.step(optimizer_d)
        with torch.autocast(device_type=device, dtype=torch.float16, enabled=use_amp):
            loss_g = F.softplus(-critic(fake)).mean()
        optimizer_g.zero_grad()
        scaler.scale(loss_g).backward()
        scaler.step(optimizer_g)
        scaler.update()
        return loss_d, loss_g

    def loop():
        for (real,) in forever(loader):
            yield train_step(real)

    return Program(loop, (generator, critic, optimizer_g, optimizer_d, scaler))
