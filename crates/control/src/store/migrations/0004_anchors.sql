-- How far a proxy says to be from the anchor of each tenant: JSON, microseconds by tenant.
ALTER TABLE proxy_status ADD COLUMN anchors TEXT NOT NULL DEFAULT '{}';
