"""The Kubernetes resources, one package a version of the API. Pure."""
