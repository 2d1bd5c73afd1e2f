"""Scratch memory: one arena for all sessions on the CPU, which gives back what no batch needs any more.

Left to itself every session has an arena of its own, and each keeps what its largest batch took for as long
as it lives.
"""

import numpy as np
import onnxruntime as ort

# Registered when this file is imported, which happens once in a process, whoever needs it.
ort.create_and_register_allocator(
    ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT),
    ort.OrtArenaCfg({"arena_extend_strategy": 1}),  # 1: by as much as is asked for, not by twice as much
)


def share_arena(options: ort.SessionOptions) -> None:
    """Let a session with these options take its scratch memory from the arena."""
    options.add_session_config_entry("session.use_env_allocators", "1")
    # Weights never go; in the arena they would hold on to the blocks around them.
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")


def shrink_arena(session: ort.InferenceSession) -> None:
    """Free what no batch uses at the moment, by a run of one image on any session that shares the arena."""
    feeds = {node.name: np.zeros([1, *node.shape[1:]], np.float32) for node in session.get_inputs()}
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    session.run(None, feeds, options)
