"""What every test shares: one thread, and the same hypothesis examples on every machine."""

import torch
from hypothesis import settings

# Tests run beside each other; they should not fight for cores.
torch.set_num_threads(1)

settings.register_profile("house", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("house")
