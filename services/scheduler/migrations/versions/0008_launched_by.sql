-- Who launched a ticket's run: a bound of his holds for it. Bounds are rows of `share` under the project `@NAME`.
ALTER TABLE ticket ADD COLUMN launched_by text NOT NULL DEFAULT '';
