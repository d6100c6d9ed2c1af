"""Python's clients, each as a program that runs in a process with its own packages."""
