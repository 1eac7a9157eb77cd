"""What a run would do, before or beside it: throughput, bottleneck, advice."""
