-- When a worker process said that it claims nothing more; it counts where it was seen after that.
ALTER TABLE worker ADD COLUMN left_ms bigint NOT NULL DEFAULT 0;
