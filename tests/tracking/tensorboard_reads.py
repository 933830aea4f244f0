"""Prints, as JSON, what TensorBoard itself reads in a folder of event files: steps and values by tag, and texts.

    python3 tensorboard_reads.py FOLDER

Ends with 77 where there is no TensorBoard.
"""

import json
import sys

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    sys.exit(77)

# 0 keeps every point: by default TensorBoard draws a sample of them.
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
events.Reload()
tags = events.Tags()
scalars = {tag: [[event.step, event.value] for event in events.Scalars(tag)] for tag in tags["scalars"]}
texts = {tag: events.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in tags["tensors"]}
print(json.dumps({"scalars": scalars, "texts": texts}))
