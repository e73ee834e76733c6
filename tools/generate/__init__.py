"""Files that are made from code and committed: `python -m tools.generate` writes them, `--check` compares.

A generator is a function without arguments that returns the text of files by their path from the repository's root;
`outputs.py` lists them.
"""
