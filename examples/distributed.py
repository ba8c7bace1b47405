"""One model on several processes. Run by ``torchrun --nproc-per-node 2 examples/distributed.py``;
alone it runs too.
"""

import gc
import os

import torch

# Once a group exists, importing this would keep that group alive in its default arguments.
import torch.distributed.nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import counterfactual_training as ct


def main():
    # Every process has the same rows and method; of every batch, and of its counterfactuals, it
    # takes its part.
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(600) % 2
    x = 2.0 * y.unsqueeze(1) + 0.8 * torch.randn(600, 2, generator=rng)

    torch.manual_seed(0)
    model = DistributedDataParallel(ct.mlp(2, 2))
    method = ct.methods.ct_published(
        epochs=10, batch_size=60, num_counterfactuals=200, learning_rate=0.01
    )
    result = ct.train(
        model, x, y, method, ct.Constraints.infer(x, {0: "none"}), validation=(x, y)
    )

    if dist.get_rank() == 0:
        last = result.history.records[-1]
        print(
            f"{dist.get_world_size()} process(es): loss {last['loss']:.4f}, "
            f"accuracy {last['validation_accuracy']:.3f}, {last['share_mature']:.0%} of the "
            "counterfactuals mature"
        )


if "RANK" not in os.environ:  # started without torchrun: a group of one
    os.environ |= {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
dist.init_process_group("gloo")  # "nccl" on GPUs
main()
dist.barrier()  # nobody leaves while another still talks
# The wrapped model holds the group, and a group's threads can abort an interpreter that ends
# before them.
gc.collect()
dist.destroy_process_group()
