"""Engines that come and go while training goes on, the trainer killed and back; with a picture of who writes to whom.

plot.py says what happens when, picture.py draws the mapping, figures.py judges; run.py does it.
"""
