"""
Hostile files by the thousand. ``make attack`` reads them all, ``tests/test_attack.py`` a few hundred.

A reader may refuse a file with ``ModelFormatError``, and has changed nothing then; or it reads it, and what it has read works.
Neither may write a file, import what the file names, start a process, open a socket, or take more than 5 seconds and 500 MB.
"""
