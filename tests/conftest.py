"""What every test shares: one thread, so that tests beside each other do not fight for cores."""

import torch

torch.set_num_threads(1)
