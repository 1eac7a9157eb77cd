"""Reports and exports of finished runs: HTML, figures, Perfetto, tables."""
