"""`python -m fairlead` is `fairlead`: for machines whose PATH does not hold the script."""

from fairlead.cli.main import main

main()
