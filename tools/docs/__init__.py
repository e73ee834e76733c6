"""The documentation as a site: `make docs`. A warning is a failure."""
