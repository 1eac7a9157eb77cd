"""What to expect of a run, before or during it: throughput, bottleneck, advice."""
