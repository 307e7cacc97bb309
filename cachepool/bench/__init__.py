"""What an allocation costs on the host, beside CuPy's own pool in the same process.

Read `cases` for what is timed, `peers` for what is compared, `nodriver` for how CuPy's
compiled pool runs on a machine without a GPU.
"""
