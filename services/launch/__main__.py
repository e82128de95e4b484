"""`python -m services.launch`: this service alone in a process."""

from services.launch.main import run

if __name__ == "__main__":
    run()
