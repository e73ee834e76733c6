"""Set-up of everything that the other targets need: environments, Debian packages, binaries, images.

Nothing outside the standard library may be imported here: these modules run before any environment exists.
"""
