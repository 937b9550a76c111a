"""From numbers to a page: typed sections, then HTML, Markdown and console. No torch here."""
