"""`python -m fairlead_operator`: what the image starts."""

from fairlead_operator.main import main

main()
