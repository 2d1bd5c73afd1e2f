"""Scratch memory: one arena for all sessions on the CPU, which can be shrunk when no batch needs it.

By default every session has its own arena, which never gives back the memory of its largest batch.
"""

from functools import cache

import numpy as np
import onnxruntime as ort

# The smallest graph there is, y = x of one number: opset 20, IR 10.
IDENTITY = (
    b'\x08\n:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x14"
)
# Registered when this file is imported, which happens once in a process.
ort.create_and_register_allocator(
    ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT),
    ort.OrtArenaCfg({"arena_extend_strategy": 1}),  # 1: by as much as is requested, not by twice as much
)


def share_arena(options: ort.SessionOptions) -> None:
    """Let a session with these options use the arena for scratch memory."""
    options.add_session_config_entry("session.use_env_allocators", "1")
    # Weights stay for ever; in the arena they would keep the blocks around them.
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")


def shrink_arena() -> None:
    """Free what no batch uses now: after a run of any session that shares the arena. Blocks shortly."""
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    _identity().run(None, {"x": np.zeros(1, np.float32)}, options)


@cache
def _identity() -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    share_arena(options)
    return ort.InferenceSession(IDENTITY, options, providers=["CPUExecutionProvider"])
