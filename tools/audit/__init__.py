"""Looking for flaws, and saying what the image is made of: `make audit`, `make sbom`.

bandit reads the packages that run; what it finds is mended, or accepted here with a reason.
"""
