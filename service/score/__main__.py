"""`python -m service.score` is capsnet-score."""

from service.score import main

if __name__ == "__main__":
    main()
