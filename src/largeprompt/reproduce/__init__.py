"""The paper's claims: studies that compute, a folder that keeps their data, a report that shows it."""
