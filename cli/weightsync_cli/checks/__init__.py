"""The checks of `weightsync preflight`: what this pod has, and whether bytes move. Nothing here prints."""
