"""weightsync.io/v1alpha1: models of the two resources, and the CRDs made from them. Pure.

A field stands here only together with the code that obeys it. Limits stand on every list and string: the API
server estimates what a validation rule may cost from them, and refuses a CRD whose rules could cost too much.
"""
