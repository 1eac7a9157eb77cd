"""One trace at a time: torch.fx and torch.export replace methods of `nn.Module` for the whole
process while they follow a model, and put back what they have found there."""

from threading import RLock

TRACING = RLock()
