"""A run as one self-contained HTML page: `model` says what it shows, `render` draws it."""
