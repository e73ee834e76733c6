"""From checkpoint tensors to a rank's arena: the copy program as data, and what runs it. torch only in replay.py."""
