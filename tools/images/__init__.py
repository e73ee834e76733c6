"""Building the images that the local cluster runs, and loading them into it.

No image registry is needed: the base comes from Debian's packages, the rest from the repository's Dockerfile.
"""
