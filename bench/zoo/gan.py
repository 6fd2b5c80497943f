"""Generators and their critics."""

import random

import torch
from program import Program, forever, images
from torch import nn


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        torch.nn.init.normal_(m.weight, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        torch.nn.init.normal_(m.weight, 1.0, 0.02)
        torch.nn.init.zeros_(m.bias)


def dcgan(device, size, graphed):
    nz, ngf, ndf, nc = size((16, 8, 8, 3), (100, 64, 64, 3))
    netG = nn.Sequential(
        nn.ConvTranspose2d(nz, ngf * 8, 4, 1, 0, bias=False), nn.BatchNorm2d(ngf * 8), nn.ReLU(True),
        nn.ConvTranspose2d(ngf * 8, ngf * 4, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf * 4), nn.ReLU(True),
        nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf * 2), nn.ReLU(True),
        nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf), nn.ReLU(True),
        nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False), nn.Tanh()).to(device)
    netD = nn.Sequential(
        nn.Conv2d(nc, ndf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(ndf * 2), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1, bias=False), nn.BatchNorm2d(ndf * 4), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(ndf * 4, ndf * 8, 4, 2, 1, bias=False), nn.BatchNorm2d(ndf * 8), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(ndf * 8, 1, 4, 1, 0, bias=False), nn.Sigmoid()).to(device)
    netG.apply(weights_init)
    netD.apply(weights_init)
    criterion = nn.BCELoss()
    real_label, fake_label = 1, 0
    optimizerD = torch.optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))
    dataloader = images(size(2, 64), 64, 10)

    @graphed
    def train_step(data):
        # (1) Update D network: maximize log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        real_cpu = data[0].to(device)
        batch_size = real_cpu.size(0)
        label = torch.full((batch_size,), real_label, dtype=real_cpu.dtype, device=device)
        output = netD(real_cpu).view(-1)
        errD_real = criterion(output, label)
        errD_real.backward()
        D_x = output.mean().item()
        noise = torch.randn(batch_size, nz, 1, 1, device=device)
        fake = netG(noise)
        label.fill_(fake_label)
        output = netD(fake.detach()).view(-1)
        errD_fake = criterion(output, label)
        errD_fake.backward()
        D_G_z1 = output.mean().item()
        errD = errD_real + errD_fake
        optimizerD.step()
        # (2) Update G network: maximize log(D(G(z)))
        netG.zero_grad()
        label.fill_(real_label)
        output = netD(fake).view(-1)
        errG = criterion(output, label)
        errG.backward()
        D_G_z2 = output.mean().item()
        optimizerG.step()
        return errD.item(), errG.item(), D_x, D_G_z1, D_G_z2

    def loop():
        for data in forever(dataloader):
            yield train_step(data)

    return Program(loop, (netD, netG, optimizerD, optimizerG))


def wgan_gp(device, size, graphed):
    side, latent_dim, width = size((16, 16, 32), (32, 100, 128))
    channels, lambda_gp, n_critic = 1, 10, 5

    def block(in_feat, out_feat, normalize=True):
        layers = [nn.Linear(in_feat, out_feat)]
        if normalize:
            layers.append(nn.BatchNorm1d(out_feat, 0.8))
        layers.append(nn.LeakyReLU(0.2, inplace=True))
        return layers

    generator = nn.Sequential(*block(latent_dim, width, normalize=False), *block(width, width * 2), *block(width * 2, width * 4),
                              nn.Linear(width * 4, channels * side * side), nn.Tanh(),
                              nn.Unflatten(1, (channels, side, side))).to(device)
    discriminator = nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, width * 4), nn.LeakyReLU(0.2, inplace=True),
                                  nn.Linear(width * 4, width * 2), nn.LeakyReLU(0.2, inplace=True),
                                  nn.Linear(width * 2, 1)).to(device)
    optimizer_G = torch.optim.Adam(generator.parameters(), lr=0.0002, betas=(0.5, 0.999))
    optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=0.0002, betas=(0.5, 0.999))
    dataloader = images(size(8, 64), side, 10, device, channels=channels)

    def compute_gradient_penalty(D, real_samples, fake_samples):
        alpha = torch.rand((real_samples.size(0), 1, 1, 1), device=device)
        interpolates = (alpha * real_samples + ((1 - alpha) * fake_samples)).requires_grad_(True)
        d_interpolates = D(interpolates)
        fake = torch.ones(real_samples.shape[0], 1, device=device)
        gradients = torch.autograd.grad(outputs=d_interpolates, inputs=interpolates, grad_outputs=fake, create_graph=True,
                                        retain_graph=True, only_inputs=True)[0]
        gradients = gradients.view(gradients.size(0), -1)
        return ((gradients.norm(2, dim=1) - 1) ** 2).mean()

    @graphed
    def train_discriminator(real_imgs):
        optimizer_D.zero_grad()
        z = torch.randn(real_imgs.shape[0], latent_dim, device=device)
        fake_imgs = generator(z)
        gradient_penalty = compute_gradient_penalty(discriminator, real_imgs.data, fake_imgs.data)
        d_loss = -torch.mean(discriminator(real_imgs)) + torch.mean(discriminator(fake_imgs)) + lambda_gp * gradient_penalty
        d_loss.backward()
        optimizer_D.step()
        return d_loss

    @graphed
    def train_generator(real_imgs):
        optimizer_G.zero_grad()
        z = torch.randn(real_imgs.shape[0], latent_dim, device=device)
        g_loss = -torch.mean(discriminator(generator(z)))
        g_loss.backward()
        optimizer_G.step()
        return g_loss

    def loop():
        for i, (imgs, _) in enumerate(forever(dataloader)):
            d_loss = train_discriminator(imgs)
            g_loss = train_generator(imgs) if i % n_critic == 0 else None
            yield d_loss, g_loss

    return Program(loop, (generator, discriminator, optimizer_G, optimizer_D), discriminator)


class UnetSkip(nn.Module):
    def __init__(self, outer, inner, submodule=None, outermost=False):
        super().__init__()
        self.outermost = outermost
        down = [nn.Conv2d(3 if outermost else outer, inner, 4, 2, 1, bias=False)]
        up_in = inner if submodule is None else inner * 2
        if outermost:
            model = down + [submodule, nn.ReLU(True), nn.ConvTranspose2d(up_in, 3, 4, 2, 1), nn.Tanh()]
        else:
            down = [nn.LeakyReLU(0.2, True)] + down
            up = [nn.ReLU(True), nn.ConvTranspose2d(up_in, outer, 4, 2, 1, bias=False), nn.BatchNorm2d(outer)]
            model = down + ([submodule] if submodule is not None else []) + up + [nn.Dropout(0.5)]
        self.model = nn.Sequential(*model)

    def forward(self, x):
        return self.model(x) if self.outermost else torch.cat([x, self.model(x)], 1)


def patch_discriminator(channels, ndf):
    return nn.Sequential(nn.Conv2d(channels, ndf, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
                         nn.BatchNorm2d(ndf * 2), nn.LeakyReLU(0.2, True), nn.Conv2d(ndf * 2, 1, 4, 1, 1))


class GANLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("real_label", torch.tensor(1.0))
        self.register_buffer("fake_label", torch.tensor(0.0))
        self.loss = nn.BCEWithLogitsLoss()

    def __call__(self, prediction, target_is_real):
        target_tensor = self.real_label if target_is_real else self.fake_label
        return self.loss(prediction, target_tensor.expand_as(prediction))


def pix2pix(device, size, graphed):
    class Pix2PixModel:
        def __init__(self, ngf):
            self.netG = UnetSkip(3, ngf, UnetSkip(ngf, ngf * 2, UnetSkip(ngf * 2, ngf * 4)), outermost=True).to(device)
            self.netD = patch_discriminator(6, ngf).to(device)
            self.criterionGAN = GANLoss().to(device)
            self.criterionL1 = torch.nn.L1Loss()
            self.optimizer_G = torch.optim.Adam(self.netG.parameters(), lr=0.0002, betas=(0.5, 0.999))
            self.optimizer_D = torch.optim.Adam(self.netD.parameters(), lr=0.0002, betas=(0.5, 0.999))

        def set_requires_grad(self, net, requires_grad=False):
            for param in net.parameters():
                param.requires_grad = requires_grad

        def forward(self):
            self.fake_B = self.netG(self.real_A)

        def backward_D(self):
            fake_AB = torch.cat((self.real_A, self.fake_B), 1)
            pred_fake = self.netD(fake_AB.detach())
            self.loss_D_fake = self.criterionGAN(pred_fake, False)
            real_AB = torch.cat((self.real_A, self.real_B), 1)
            self.loss_D_real = self.criterionGAN(self.netD(real_AB), True)
            self.loss_D = (self.loss_D_fake + self.loss_D_real) * 0.5
            self.loss_D.backward()

        def backward_G(self):
            fake_AB = torch.cat((self.real_A, self.fake_B), 1)
            self.loss_G_GAN = self.criterionGAN(self.netD(fake_AB), True)
            self.loss_G_L1 = self.criterionL1(self.fake_B, self.real_B) * 100.0
            self.loss_G = self.loss_G_GAN + self.loss_G_L1
            self.loss_G.backward()

        @graphed
        def optimize_parameters(self, real_A, real_B):
            self.real_A, self.real_B = real_A, real_B
            self.forward()
            self.set_requires_grad(self.netD, True)
            self.optimizer_D.zero_grad()
            self.backward_D()
            self.optimizer_D.step()
            self.set_requires_grad(self.netD, False)
            self.optimizer_G.zero_grad()
            self.backward_G()
            self.optimizer_G.step()
            return self.loss_D, self.loss_G

    model = Pix2PixModel(size(8, 64))
    dataset = [(a, b) for (a, _), (b, _) in zip(*(images(size(1, 4), size(16, 256), 10, device) for _ in range(2)))]

    def loop():
        for real_A, real_B in forever(dataset):
            yield model.optimize_parameters(real_A, real_B)

    return Program(loop, (model.netG, model.netD, model.optimizer_G, model.optimizer_D))


class ReplayBuffer:
    def __init__(self, max_size=50):
        self.max_size = max_size
        self.data = []

    def push_and_pop(self, data):
        to_return = []
        for element in data.data:
            element = torch.unsqueeze(element, 0)
            if len(self.data) < self.max_size:
                self.data.append(element)
                to_return.append(element)
            else:
                if random.uniform(0, 1) > 0.5:
                    i = random.randint(0, self.max_size - 1)
                    to_return.append(self.data[i].clone())
                    self.data[i] = element
                else:
                    to_return.append(element)
        return torch.cat(to_return)


class ResidualBlock(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.block = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(features, features, 3), nn.InstanceNorm2d(features), nn.ReLU(inplace=True),
            nn.ReflectionPad2d(1), nn.Conv2d(features, features, 3), nn.InstanceNorm2d(features))

    def forward(self, x):
        return x + self.block(x)


def resnet_generator(width, blocks):
    return nn.Sequential(nn.Conv2d(3, width, 7, padding=3), nn.InstanceNorm2d(width), nn.ReLU(inplace=True),
                         *[ResidualBlock(width) for _ in range(blocks)], nn.Conv2d(width, 3, 7, padding=3), nn.Tanh())


def cyclegan(device, size, graphed):
    width, blocks = size((8, 1), (64, 6))
    G_AB, G_BA = resnet_generator(width, blocks).to(device), resnet_generator(width, blocks).to(device)
    D_A, D_B = patch_discriminator(3, width).to(device), patch_discriminator(3, width).to(device)
    criterion_GAN, criterion_cycle, criterion_identity = nn.MSELoss(), nn.L1Loss(), nn.L1Loss()
    optimizer_G = torch.optim.Adam([*G_AB.parameters(), *G_BA.parameters()], lr=0.0002, betas=(0.5, 0.999))
    optimizer_D_A = torch.optim.Adam(D_A.parameters(), lr=0.0002, betas=(0.5, 0.999))
    optimizer_D_B = torch.optim.Adam(D_B.parameters(), lr=0.0002, betas=(0.5, 0.999))
    fake_A_buffer, fake_B_buffer = ReplayBuffer(), ReplayBuffer()
    dataloader = [(a, b) for (a, _), (b, _) in zip(*(images(size(1, 2), size(16, 128), 10, device) for _ in range(2)))]

    @graphed
    def train_step(real_A, real_B):
        valid = torch.ones(D_A(real_A).shape, device=device)
        fake = torch.zeros(valid.shape, device=device)
        optimizer_G.zero_grad()
        loss_identity = (criterion_identity(G_BA(real_A), real_A) + criterion_identity(G_AB(real_B), real_B)) / 2
        fake_B, fake_A = G_AB(real_A), G_BA(real_B)
        loss_GAN = (criterion_GAN(D_B(fake_B), valid) + criterion_GAN(D_A(fake_A), valid)) / 2
        loss_cycle = (criterion_cycle(G_BA(fake_B), real_A) + criterion_cycle(G_AB(fake_A), real_B)) / 2
        loss_G = loss_GAN + 10.0 * loss_cycle + 5.0 * loss_identity
        loss_G.backward()
        optimizer_G.step()
        losses = []
        for D, optimizer_D, real, fake_X, buffer in ((D_A, optimizer_D_A, real_A, fake_A, fake_A_buffer),
                                                     (D_B, optimizer_D_B, real_B, fake_B, fake_B_buffer)):
            optimizer_D.zero_grad()
            loss_real = criterion_GAN(D(real), valid)
            fake_ = buffer.push_and_pop(fake_X)
            loss_D = (loss_real + criterion_GAN(D(fake_.detach()), fake)) / 2
            loss_D.backward()
            optimizer_D.step()
            losses.append(loss_D)
        return loss_G, losses

    def loop():
        for real_A, real_B in forever(dataloader):
            yield train_step(real_A, real_B)

    return Program(loop, (G_AB, G_BA, D_A, D_B, optimizer_G, optimizer_D_A, optimizer_D_B, fake_A_buffer, fake_B_buffer))
