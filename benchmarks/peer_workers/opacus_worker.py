"""Opacus: a training step of PyTorch, eager, with each of Opacus' ways to clip."""

import warnings

import opacus
import protocol
import sizes
import torch
from torch import nn

warnings.filterwarnings("ignore")
torch.set_num_threads(sizes.THREADS)

#: How `make_private` is called for each method.
METHODS = {
    "hooks": {"grad_sample_mode": "hooks"},
    "functorch": {"grad_sample_mode": "functorch"},
    "expanded weights": {"grad_sample_mode": "ew"},
    "ghost": {"grad_sample_mode": "ghost"},
    "fast gradient clipping": {"grad_sample_mode": "ghost", "use_ghost_clipping": False},
}


class Block(nn.Module):
    """Pre-norm, one causal head, of linear layers: Opacus has no rule for nn.MultiheadAttention."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.hidden, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norm(x)
        y = nn.functional.scaled_dot_product_attention(
            self.query(y), self.key(y), self.value(y), is_causal=True
        )
        x = x + self.out(y)
        return x + self.back(torch.relu(self.hidden(self.second_norm(x))))


class Transformer(nn.Module):
    def __init__(self, length, tied):
        super().__init__()
        self.table = nn.Embedding(sizes.VOCABULARY, sizes.WIDTH)
        self.blocks = nn.Sequential(*[Block(sizes.WIDTH) for _ in range(sizes.BLOCKS)])
        self.norm = nn.LayerNorm(sizes.WIDTH)
        self.head = nn.Linear(sizes.WIDTH, sizes.VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.table(ids))))


class Recurrent(nn.Module):
    def __init__(self, private):
        super().__init__()
        # nn.GRU is one call into ATen; DPGRU is its replacement of linear layers.
        layer = opacus.layers.DPGRU if private else nn.GRU
        self.gru, self.head = layer(32, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])


class Clicks(nn.Module):
    def __init__(self, tables, rows, width):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, width) for _ in range(tables)])
        inputs = tables * width + sizes.NUMBERS
        self.rest = nn.Sequential(
            nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2)
        )

    def forward(self, ids, numbers):
        looked_up = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        return self.rest(torch.cat([*looked_up, numbers], 1))


class Adapted(nn.Module):
    """A frozen layer with a low rank that is trained (LoRA)."""

    def __init__(self, width):
        super().__init__()
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.down = nn.Linear(width, sizes.RANK, bias=False)
        self.up = nn.Linear(sizes.RANK, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


class EncoderBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.value = Adapted(width), Adapted(width)
        self.key, self.out = (nn.Linear(width, width).requires_grad_(False) for _ in range(2))
        self.hidden = nn.Linear(width, 4 * width).requires_grad_(False)
        self.back = nn.Linear(4 * width, width).requires_grad_(False)
        self.norm, self.second_norm = (nn.LayerNorm(width).requires_grad_(False) for _ in range(2))

    def forward(self, x):
        heads = (*x.shape[:2], sizes.HEADS, -1)
        query, key, value = (
            layer(x).view(heads).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        seen = nn.functional.scaled_dot_product_attention(query, key, value)
        x = self.norm(x + self.out(seen.transpose(1, 2).reshape(x.shape)))
        return self.second_norm(x + self.back(nn.functional.gelu(self.hidden(x))))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(sizes.WORDS, sizes.ENCODER_WIDTH).requires_grad_(False)
        blocks = [EncoderBlock(sizes.ENCODER_WIDTH) for _ in range(sizes.ENCODER_BLOCKS)]
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(sizes.ENCODER_WIDTH, 2)

    def forward(self, ids):
        return self.head(self.blocks(self.table(ids))[:, 0])


def perceptron():
    parts, inputs = [], 256
    for _ in range(3):
        parts += [nn.Linear(inputs, 512), nn.ReLU()]
        inputs = 512
    return nn.Sequential(*parts, nn.Linear(inputs, 10))


def convolutions():
    parts, channels = [], 3
    for filters, strides in ((32, 1), (32, 2), (64, 2)):
        parts += [nn.Conv2d(channels, filters, 3, strides), nn.GroupNorm(8, filters), nn.ReLU()]
        channels = filters
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def build(name, private):
    torch.manual_seed(0)
    kind, options, _ = sizes.ARCHITECTURES[name]
    if kind == "transformer":
        return Transformer(**options)
    if kind == "clicks":
        return Clicks(**options)
    if kind == "gru":
        return Recurrent(private)
    makers = {"perceptron": perceptron, "convolutions": convolutions, "encoder": Encoder}
    return makers[kind]()


class Trainer:
    def __init__(self, name, method, optimizer, noise_multiplier, clip_norm, batch_size):
        self.images = sizes.ARCHITECTURES[name][0] == "convolutions"
        self.ghost = METHODS.get(method, {}).get("grad_sample_mode") == "ghost"
        self.model = build(name, method != "plain")
        rate = sizes.RATES[optimizer]
        kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer]
        self.optimizer = kind(self.model.parameters(), lr=rate)
        self.loss = nn.CrossEntropyLoss()
        if method == "plain":
            return
        # One batch is all data: the expected size of a batch is the batch's.
        data = torch.utils.data.TensorDataset(torch.zeros(batch_size))
        made = opacus.PrivacyEngine().make_private(
            module=self.model,
            optimizer=self.optimizer,
            criterion=self.loss,
            data_loader=torch.utils.data.DataLoader(data, batch_size=batch_size),
            noise_multiplier=noise_multiplier,
            max_grad_norm=clip_norm,
            poisson_sampling=False,
            **METHODS[method],
        )
        self.model, self.optimizer = made[:2]
        if self.ghost:
            self.loss = made[2]

    def feed(self, inputs, labels):
        if self.images:
            inputs = [x.transpose(0, 3, 1, 2).copy() for x in inputs]
        self.inputs = [torch.from_numpy(x) for x in inputs]
        self.labels = torch.from_numpy(labels).long()

    def step(self):
        self.optimizer.zero_grad()
        logits = self.model(*self.inputs)
        flat = logits.reshape(-1, logits.shape[-1]), self.labels.reshape(-1)
        if self.ghost and logits.ndim == 3:
            loss = self.loss(*flat, shape=logits.shape)
        else:
            loss = self.loss(*flat)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def _weights(self):
        """Every weight once, ordered by a name that the private model has, too."""
        found = {}
        for _, value in sorted(self.model.state_dict(keep_vars=True).items()):
            found.setdefault(id(value), value)
        return list(found.values())

    def get(self):
        return [v.detach().numpy().copy() for v in self._weights()]

    def set(self, values):
        with torch.no_grad():
            for variable, value in zip(self._weights(), values, strict=True):
                variable.copy_(torch.from_numpy(value))


if __name__ == "__main__":
    protocol.serve(Trainer, {"opacus": opacus.__version__, "torch": torch.__version__})
