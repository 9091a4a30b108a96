"""`python -m transduce` is the command line."""

from transduce.cli import main

main()
