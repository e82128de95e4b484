-- What an instance of a step was made for: a serialized google.protobuf.Value; empty for other steps.
ALTER TABLE step ADD COLUMN item bytea NOT NULL DEFAULT '';
