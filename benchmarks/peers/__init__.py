"""The peers' programs, and the environments that they run in, apart from the project's packages.

Apache Beam, which PyFlink needs, holds back pyarrow, protobuf and others by years: in one
environment with ours, one of the two would not run. Python packages are pinned in a file each,
jars in jars.lock, and Go's modules in franz_go/go.sum.
"""
