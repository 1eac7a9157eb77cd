"""One trace at a time: torch.fx and torch.export follow a model by replacing methods of `nn.Module`,
for the whole process, and put back what they have found there."""

from threading import RLock

TRACING = RLock()
