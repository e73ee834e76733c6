"""Engines that pass weights on, and that join, over links of a known speed: what it costs whom."""
