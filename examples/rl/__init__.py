"""The example's reinforcement learning: a small transformer learns to count on from its rollout engines' answers.

task, learner, policy     what is learned, how, and from which first weights
engines, probes           asking the rollout engines; choosing questions that tell two versions apart
checker, versions         are the answers those of the weights that they name? (what the demo is judged by)
trainer                   the loop: two ranks, each publishes half of the layers after every step
offline                   the same loop in one process, with nothing to publish to
"""
