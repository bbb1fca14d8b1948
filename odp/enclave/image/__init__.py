"""Enclave images: one file with everything that an enclave's process runs, and nothing else.

=============  ======================================================================
``parts``      the file: a manifest and the bytes that it lists; its digest
``contents``   what an enclave loads, as a fresh interpreter finds it
``building``   the image of an entry module, the same bytes wherever it is built
``bootstrap``  the first Python code inside of an enclave: imports from the image alone
``running``    the process that becomes an enclave: sealed memory files, then exec
=============  ======================================================================
"""
