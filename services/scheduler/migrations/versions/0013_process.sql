-- Which process of a name it is, as hexadecimal digits; empty where it does not say. One of the same name that leaves is another.
ALTER TABLE worker ADD COLUMN process text NOT NULL DEFAULT '';
