"""The compiled twin of this package: C types here, extensions beside them once built.

Each ``x.pxd`` types the source of the same relative name one package up.
"""
