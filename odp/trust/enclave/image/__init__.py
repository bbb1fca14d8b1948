"""Enclave images: one file with everything that an enclave's process runs, and nothing else.

=============  =====================================================================================
``parts``      the file: a manifest and the bytes that it lists; its digest
``contents``   what an enclave loads, as a fresh interpreter finds it
``places``     where packages and the standard library lie
``recorded``   files of libraries, as their installer recorded them
``libraries``  what shared objects need
``building``   the image of an entry module, the same bytes wherever it is built
``built``      the images of this installation, each built once and kept
``bootstrap``  the first Python code inside of an enclave: imports from the image alone
``running``    the process that becomes an image: sealed memory files, then exec
``listing``    what an image is made of, for people; ``lines`` counts them
=============  =====================================================================================
"""
