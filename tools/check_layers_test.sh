#!/bin/bash
# The runfile is a link into the source tree: check the tree it points to.
exec python3 tools/check_layers.py WORKSPACE
