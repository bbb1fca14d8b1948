"""What an operator watches a program by: metrics, and where they are served."""
