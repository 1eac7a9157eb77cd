"""Training steps as recorded CUDA graphs: one launch instead of hundreds, a stream for each node.

The engines of a simulation on a GPU. The first steps of a node are computed as they are anywhere
(libraries prepare themselves then); after that each kind of step is recorded once, and replayed
from then on, with the same kernels. A node's tensors stay where they are. What is handed from one
stream to another carries an event that the other one waits for; the host waits for nothing. What
cannot be recorded (data that is loaded by workers, a model that looks at values, robust merging)
is computed step by step, on the same streams. The server of a run over the network records its
steps too, but replays them on the usual stream: nothing around it has to know.
"""
