"""What is shipped around the program; `deploy.packaging` writes the generated part of it."""
