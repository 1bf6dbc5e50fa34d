"""Schemes side by side: the plan of a comparison, its rates, tables, findings, charts, report and record."""
