"""Statistics from reports that are private by themselves: no party is trusted, the server adds the reports up."""
