"""What the lessons share: a training loop, things to show, and the checks of their exercises, one module a lesson."""
