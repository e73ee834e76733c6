"""Reports of benchmarks, fault trials and simulations: written as build/<kind>/<name>.json, printed as one table."""
