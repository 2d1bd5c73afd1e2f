"""Scratch memory: one arena for all sessions on the CPU, which can be shrunk when no batch needs it.

By default every session has its own arena, which never gives back the memory of its largest batch.
"""

import numpy as np
import onnxruntime as ort

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


def shrink_arena(session: ort.InferenceSession) -> None:
    """Free what no batch uses now, by a run of one image on any session that shares the arena."""
    feeds = {node.name: np.zeros([1, *node.shape[1:]], np.float32) for node in session.get_inputs()}
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    session.run(None, feeds, options)
