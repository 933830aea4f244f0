"""The hub's own library: loads a dataset from the hub that HF_ENDPOINT names, or finds it in the cache without a network."""

import os
import sys

from huggingface_hub import snapshot_download

is_offline = sys.argv[1] == "find"
folder = snapshot_download("somebody/texts", repo_type="dataset", local_files_only=is_offline)
for root, _, names in os.walk(folder):
    for name in names:
        path = os.path.join(root, name)
        print(os.path.relpath(path, folder), os.path.getsize(path))
