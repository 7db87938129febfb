"""The version of the package, as the door, the command line and the wheel tell it."""

VERSION = "0.1.0"
