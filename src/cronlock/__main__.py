"""`python -m cronlock`, for machines whose PATH lacks the console script."""

from cronlock.cli import main

if __name__ == "__main__":
    main()
