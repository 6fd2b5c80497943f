"""Image models of torchvision and timm, and the programs that train them."""

import numpy as np
import timm
import torch
import torchvision
from program import Program, forever, images
from timm.loss import LabelSmoothingCrossEntropy
from torch import nn
from torch.nn import functional as F


def quickstart(device, size, graphed):
    class NeuralNetwork(nn.Module):
        def __init__(self):
            super().__init__()
            self.flatten = nn.Flatten()
            self.linear_relu_stack = nn.Sequential(
                nn.Linear(28 * 28, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))

        def forward(self, x):
            x = self.flatten(x)
            return self.linear_relu_stack(x)

    model = NeuralNetwork().to(device)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    train_dataloader = images(64, 28, 10, channels=1)

    @graphed
    def train_step(X, y):
        X, y = X.to(device), y.to(device)
        pred = model(X)
        loss = loss_fn(pred, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    def loop():
        for X, y in forever(train_dataloader):
            yield train_step(X, y)

    return Program(loop, (model, optimizer), model)


def mnist_adadelta(device, size, graphed):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 32, 3, 1)
            self.conv2 = nn.Conv2d(32, 64, 3, 1)
            self.dropout1 = nn.Dropout(0.25)
            self.dropout2 = nn.Dropout(0.5)
            self.fc1 = nn.Linear(9216, 128)
            self.fc2 = nn.Linear(128, 10)

        def forward(self, x):
            x = self.conv1(x)
            x = F.relu(x)
            x = self.conv2(x)
            x = F.relu(x)
            x = F.max_pool2d(x, 2)
            x = self.dropout1(x)
            x = torch.flatten(x, 1)
            x = self.fc1(x)
            x = F.relu(x)
            x = self.dropout2(x)
            x = self.fc2(x)
            return F.log_softmax(x, dim=1)

    model = Net().to(device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    train_loader = images(size(8, 64), 28, 10, channels=1)
    model.train()

    @graphed
    def train_step(data, target):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        return loss.item()

    def loop():
        for batch_idx, (data, target) in enumerate(forever(train_loader)):
            yield train_step(data, target)
            if batch_idx % 50 == 49:  # an epoch
                scheduler.step()

    return Program(loop, (model, optimizer, scheduler), model)


def resnet50_sgd(device, size, graphed):
    model = size(torchvision.models.resnet18, torchvision.models.resnet50)().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    loader = images(size(2, 32), size(32, 224), 1000, device)
    model.train()

    @graphed
    def train_step(x, y):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def loop():
        for x, y in forever(loader):
            yield train_step(x, y)

    return Program(loop, (model, optimizer), model)


def resnet50_reference(device, size, graphed):
    model = size(torchvision.models.resnet18, torchvision.models.resnet50)().to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=2e-5)
    scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
    model_ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))
    data_loader = images(size(2, 32), size(32, 176), 1000)
    model.train()

    @graphed
    def train_step(image, target):
        image, target = image.to(device, non_blocking=True), target.to(device, non_blocking=True)
        with torch.autocast(device, dtype=torch.float16 if device == "cuda" else torch.bfloat16):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        model_ema.update_parameters(model)
        return output, loss

    def loop():
        for image, target in forever(data_loader):
            yield train_step(image, target)

    return Program(loop, (model, optimizer, scaler, model_ema), model)


def mobilenetv3(device, size, graphed):
    model = timm.create_model(size("mobilenetv3_small_050", "mobilenetv3_large_100"), pretrained=False, num_classes=100).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = images(size(2, 64), size(32, 224), 100, device)
    model.train()

    @graphed
    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def loop():
        for x, y in forever(loader):
            yield train_step(x, y)

    return Program(loop, (model, optimizer), model)


def efficientnet(device, size, graphed):
    model = timm.create_model("efficientnet_b0", pretrained=False, num_classes=100, drop_rate=0.2, drop_path_rate=0.2).to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.048, alpha=0.9, momentum=0.9, weight_decay=1e-5)
    loss_fn = LabelSmoothingCrossEntropy(smoothing=0.1)
    loader = images(size(2, 64), size(32, 224), 100)
    model.train()

    @graphed
    def train_step(x, y):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def loop():
        for x, y in forever(loader):
            yield train_step(x, y)

    return Program(loop, (model, optimizer), model)


def vit_onecycle(device, size, graphed):
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=size(32, 224), depth=size(2, 12),
                              num_classes=100).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=100_000)
    loader = images(size(2, 64), size(32, 224), 100, device)
    model.train()

    @graphed
    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        return loss

    def loop():
        for x, y in forever(loader):
            yield train_step(x, y)

    return Program(loop, (model, optimizer, scheduler), model)


def convnext_ema(device, size, graphed):
    small = [torchvision.models.convnext.CNBlockConfig(16, 32, 1), torchvision.models.convnext.CNBlockConfig(32, None, 2)]
    model = torchvision.models.ConvNeXt(small, stochastic_depth_prob=0.1, num_classes=10) if not size.full \
        else torchvision.models.convnext_tiny(num_classes=10)
    model = model.to(device)
    ema_model = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = images(size(2, 32), size(32, 224), 10, device)
    model.train()

    @graphed
    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        ema_model.update_parameters(model)
        return loss

    def loop():
        for x, y in forever(loader):
            yield train_step(x, y)

    return Program(loop, (model, ema_model, optimizer), model)


def swin_scaler(device, size, graphed):
    model = torchvision.models.SwinTransformer(
        patch_size=[4, 4], embed_dim=size(16, 96), depths=size([2, 2], [2, 2, 6, 2]), num_heads=size([2, 4], [3, 6, 12, 24]),
        window_size=[7, 7], stochastic_depth_prob=0.2, num_classes=100).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    use_amp = device == "cuda"
    scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
    loader = images(size(2, 32), size(56, 224), 100, device)
    model.train()

    @graphed
    def train_step(x, y):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device_type=device, dtype=torch.float16, enabled=use_amp):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=5.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    def loop():
        for x, y in forever(loader):
            yield train_step(x, y)

    return Program(loop, (model, optimizer, scaler), model)


def densenet_checkpointed(device, size, graphed):
    model = torchvision.models.DenseNet(growth_rate=size(8, 32), block_config=size((2, 2), (6, 12, 24, 16)),
                                        num_init_features=size(16, 64), memory_efficient=True, num_classes=100).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    loader = images(size(2, 32), size(32, 224), 100, device)
    model.train()

    @graphed
    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def loop():
        for x, y in forever(loader):
            yield train_step(x, y)

    return Program(loop, (model, optimizer), model)


def cumulative_batchnorm(device, size, graphed):
    model = torchvision.models.resnet18(norm_layer=lambda channels: nn.BatchNorm2d(channels, momentum=None)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = images(size(2, 64), size(32, 224), 1000, device)
    model.train()

    @graphed
    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def loop():
        for x, y in forever(loader):
            yield train_step(x, y)

    return Program(loop, (model, optimizer), model)


def mixup(device, size, graphed):
    net = torchvision.models.resnet18(num_classes=10).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    trainloader = images(size(2, 128), 32, 10)
    net.train()

    def mixup_data(x, y, alpha=1.0):
        lam = np.random.beta(alpha, alpha) if alpha > 0 else 1
        batch_size = x.size()[0]
        index = torch.randperm(batch_size).to(device)
        mixed_x = lam * x + (1 - lam) * x[index, :]
        y_a, y_b = y, y[index]
        return mixed_x, y_a, y_b, lam

    def mixup_criterion(criterion, pred, y_a, y_b, lam):
        return lam * criterion(pred, y_a) + (1 - lam) * criterion(pred, y_b)

    @graphed
    def train_step(inputs, targets):
        inputs, targets = inputs.to(device), targets.to(device)
        inputs, targets_a, targets_b, lam = mixup_data(inputs, targets)
        outputs = net(inputs)
        loss = mixup_criterion(criterion, outputs, targets_a, targets_b, lam)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def loop():
        for inputs, targets in forever(trainloader):
            yield train_step(inputs, targets)

    return Program(loop, (net, optimizer), net)


def distillation(device, size, graphed):
    class DeepNN(nn.Module):
        def __init__(self, num_classes=10):
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(3, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2),
                nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2))
            self.classifier = nn.Sequential(nn.Linear(2048, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, num_classes))

        def forward(self, x):
            return self.classifier(torch.flatten(self.features(x), 1))

    class LightNN(nn.Module):
        def __init__(self, num_classes=10):
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2),
                                          nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2))
            self.classifier = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, num_classes))

        def forward(self, x):
            return self.classifier(torch.flatten(self.features(x), 1))

    teacher, student = DeepNN().to(device), LightNN().to(device)
    T, soft_target_loss_weight, ce_loss_weight = 2, 0.25, 0.75
    ce_loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(student.parameters(), lr=0.001)
    train_loader = images(size(2, 128), 32, 10)
    teacher.eval()
    student.train()

    @graphed
    def train_step(inputs, labels):
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        with torch.no_grad():
            teacher_logits = teacher(inputs)
        student_logits = student(inputs)
        soft_targets = nn.functional.softmax(teacher_logits / T, dim=-1)
        soft_prob = nn.functional.log_softmax(student_logits / T, dim=-1)
        soft_targets_loss = torch.sum(soft_targets * (soft_targets.log() - soft_prob)) / soft_prob.size()[0] * (T**2)
        label_loss = ce_loss(student_logits, labels)
        loss = soft_target_loss_weight * soft_targets_loss + ce_loss_weight * label_loss
        loss.backward()
        optimizer.step()
        return loss.item()

    def loop():
        running_loss = 0.0
        for inputs, labels in forever(train_loader):
            running_loss += train_step(inputs, labels)
            yield running_loss

    return Program(loop, (student, optimizer), student)


def simclr(device, size, graphed):
    model = torchvision.models.resnet18(num_classes=128)
    dim_mlp = model.fc.in_features
    model.fc = nn.Sequential(nn.Linear(dim_mlp, dim_mlp), nn.ReLU(), model.fc)
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), 3e-4, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss().to(device)
    batch_size, n_views, temperature = size(2, 128), 2, 0.07
    loader = [batch[:1] for batch in images(batch_size * n_views, size(32, 96), 10, device)]

    def info_nce_loss(features):
        labels = torch.cat([torch.arange(batch_size) for i in range(n_views)], dim=0)
        labels = (labels.unsqueeze(0) == labels.unsqueeze(1)).float()
        labels = labels.to(device)
        features = F.normalize(features, dim=1)
        similarity_matrix = torch.matmul(features, features.T)
        mask = torch.eye(labels.shape[0], dtype=torch.bool).to(device)
        labels = labels[~mask].view(labels.shape[0], -1)
        similarity_matrix = similarity_matrix[~mask].view(similarity_matrix.shape[0], -1)
        positives = similarity_matrix[labels.bool()].view(labels.shape[0], -1)
        negatives = similarity_matrix[~labels.bool()].view(similarity_matrix.shape[0], -1)
        logits = torch.cat([positives, negatives], dim=1)
        labels = torch.zeros(logits.shape[0], dtype=torch.long).to(device)
        logits = logits / temperature
        return logits, labels

    @graphed
    def train_step(images):
        features = model(images)
        logits, labels = info_nce_loss(features)
        loss = criterion(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def loop():
        for (images,) in forever(loader):
            yield train_step(images)

    return Program(loop, (model, optimizer), model)


def vit_mae(device, size, graphed):
    import transformers

    config = transformers.ViTMAEConfig(**size(
        dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8,
             decoder_hidden_size=32, decoder_num_hidden_layers=1, decoder_num_attention_heads=2, decoder_intermediate_size=64), {}))
    model = transformers.ViTMAEForPreTraining(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-4, betas=(0.9, 0.95), weight_decay=0.05)
    loader = [batch[:1] for batch in images(size(2, 64), config.image_size, 10, device)]
    model.train()

    @graphed
    def train_step(pixel_values):
        optimizer.zero_grad()
        outputs = model(pixel_values=pixel_values)
        outputs.loss.backward()
        optimizer.step()
        return outputs.loss

    def loop():
        for (pixel_values,) in forever(loader):
            yield train_step(pixel_values)

    return Program(loop, (model, optimizer), model)


def resnet50_inference(device, size, graphed):
    model = size(torchvision.models.resnet18, torchvision.models.resnet50)().to(device)
    model.eval()
    loader = [batch[:1] for batch in images(size(2, 8), size(64, 224), 10)]

    @graphed
    @torch.inference_mode()
    def predict(batch):
        batch = batch.to(device)
        probabilities = F.softmax(model(batch), dim=1)
        return probabilities.topk(5)

    def loop():
        for (batch,) in forever(loader):
            yield predict(batch)

    return Program(loop, (model,), model)


def vit_inference(device, size, graphed):
    model = timm.create_model("vit_small_patch16_224", pretrained=False, img_size=size(32, 224), depth=size(2, 12)).to(device)
    model = model.eval()
    loader = [batch[:1] for batch in images(size(2, 8), size(32, 224), 10, device)]

    @graphed
    def predict(x):
        with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
            output = model(x)
        return torch.topk(output.softmax(dim=1) * 100, k=5)

    def loop():
        for (x,) in forever(loader):
            yield predict(x)

    return Program(loop, (model,), model)
