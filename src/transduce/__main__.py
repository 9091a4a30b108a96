"""`python -m transduce` is the command line."""

from transduce.cli.app import main

main()
