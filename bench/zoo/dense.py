"""Segmentation and detection."""

import torch
import torchvision
from program import Program, forever
from torch import nn
from torch.nn import functional as F


def _scenes(batch, side, classes, device="cpu", count=4):
    return [(torch.randn(batch, 3, side, side).to(device), torch.randint(classes, (batch, side, side)).to(device))
            for _ in range(count)]


def deeplabv3_poly(device, size, graphed):
    model = torchvision.models.segmentation.deeplabv3_resnet50(
        weights=None, weights_backbone=None, aux_loss=True, num_classes=21).to(device)
    params_to_optimize = [{"params": [p for p in model.backbone.parameters() if p.requires_grad]},
                          {"params": [p for p in model.classifier.parameters() if p.requires_grad]},
                          {"params": [p for p in model.aux_classifier.parameters() if p.requires_grad], "lr": 0.01 * 10}]
    optimizer = torch.optim.SGD(params_to_optimize, lr=0.01, momentum=0.9, weight_decay=1e-4)
    iters = 100_000
    lr_scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=iters, power=0.9)
    data_loader = _scenes(2, size(16, 260), 21)
    model.train()

    def criterion(inputs, target):
        losses = {}
        for name, x in inputs.items():
            losses[name] = nn.functional.cross_entropy(x, target, ignore_index=255)
        return losses["out"] + 0.5 * losses["aux"]

    @graphed
    def train_step(image, target):
        image, target = image.to(device), target.to(device)
        output = model(image)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lr_scheduler.step()
        return loss.item()

    def loop():
        for image, target in forever(data_loader):
            yield train_step(image, target), optimizer.param_groups[0]["lr"]

    return Program(loop, (model, optimizer, lr_scheduler), model)


class DoubleConv(nn.Module):
    def __init__(self, in_channels, out_channels, mid_channels=None):
        super().__init__()
        mid_channels = mid_channels or out_channels
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, mid_channels, 3, padding=1, bias=False), nn.BatchNorm2d(mid_channels), nn.ReLU(inplace=True),
            nn.Conv2d(mid_channels, out_channels, 3, padding=1, bias=False), nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True))

    def forward(self, x):
        return self.double_conv(x)


class Up(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.conv = DoubleConv(in_channels, out_channels, in_channels // 2)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        diffY = x2.size()[2] - x1.size()[2]
        diffX = x2.size()[3] - x1.size()[3]
        x1 = F.pad(x1, [diffX // 2, diffX - diffX // 2, diffY // 2, diffY - diffY // 2])
        x = torch.cat([x2, x1], dim=1)
        return self.conv(x)


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes, width):
        super().__init__()
        self.inc = DoubleConv(n_channels, width)
        self.down = nn.ModuleList([nn.Sequential(nn.MaxPool2d(2), DoubleConv(width * i, width * o))
                                   for i, o in ((1, 2), (2, 4), (4, 8), (8, 8))])
        self.up = nn.ModuleList([Up(width * i, width * o) for i, o in ((16, 4), (8, 2), (4, 1), (2, 1))])
        self.outc = nn.Conv2d(width, n_classes, kernel_size=1)

    def forward(self, x):
        levels = [self.inc(x)]
        for down in self.down:
            levels.append(down(levels[-1]))
        x = levels.pop()
        for up in self.up:
            x = up(x, levels.pop())
        return self.outc(x)


def dice_loss(input, target, epsilon=1e-6):
    inter = 2 * (input * target).sum(dim=(-1, -2, -3))
    sets_sum = input.sum(dim=(-1, -2, -3)) + target.sum(dim=(-1, -2, -3))
    sets_sum = torch.where(sets_sum == 0, inter, sets_sum)
    dice = (inter + epsilon) / (sets_sum + epsilon)
    return 1 - dice.mean()


def unet_scaler(device, size, graphed):
    model = UNet(3, 2, size(4, 64)).to(memory_format=torch.channels_last).to(device=device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-5, weight_decay=1e-8, momentum=0.999, foreach=True)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=5)
    amp = device == "cuda"
    grad_scaler = torch.amp.GradScaler("cuda", enabled=amp)
    criterion = nn.CrossEntropyLoss()
    train_loader = _scenes(size(1, 4), size(32, 320), 2)
    model.train()

    @graphed
    def train_step(images, true_masks):
        images = images.to(device=device, dtype=torch.float32, memory_format=torch.channels_last)
        true_masks = true_masks.to(device=device, dtype=torch.long)
        with torch.autocast(device, enabled=amp):
            masks_pred = model(images)
            loss = criterion(masks_pred, true_masks)
            loss += dice_loss(F.softmax(masks_pred, dim=1).float(), F.one_hot(true_masks, 2).permute(0, 3, 1, 2).float())
        optimizer.zero_grad(set_to_none=True)
        grad_scaler.scale(loss).backward()
        grad_scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        grad_scaler.step(optimizer)
        grad_scaler.update()
        return loss.item()

    def loop():
        epoch_loss = 0
        for step, (images, true_masks) in enumerate(forever(train_loader)):
            epoch_loss += train_step(images, true_masks)
            if step % 100 == 99:
                scheduler.step(-epoch_loss)
            yield epoch_loss

    return Program(loop, (model, optimizer, grad_scaler), model)


def fasterrcnn(device, size, graphed):
    model = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=5, min_size=size(64, 320), max_size=size(64, 640)).to(device)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=0.005, momentum=0.9, weight_decay=0.0005)
    side = size(64, 320)
    data_loader = []
    for _ in range(4):
        corner = torch.rand(3, 2) * side / 2
        boxes = torch.cat([corner, corner + 4 + torch.rand(3, 2) * side / 3], dim=1)
        data_loader.append((torch.rand(3, side, side), boxes, torch.randint(1, 5, (3,))))
    model.train()

    @graphed
    def train_step(images, targets):
        images = [image.to(device) for image in images]
        targets = [{k: v.to(device) for k, v in t.items()} for t in targets]
        loss_dict = model(images, targets)
        losses = sum(loss for loss in loss_dict.values())
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        return losses.item()

    def loop():
        for image, boxes, labels in forever(data_loader):
            yield train_step([image], [{"boxes": boxes, "labels": labels}])

    return Program(loop, (model, optimizer), model)
