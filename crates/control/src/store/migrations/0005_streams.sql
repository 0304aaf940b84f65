-- Which chain a proxy's last revocation is of, and which stream wrote last how somebody is.
ALTER TABLE proxy_status ADD COLUMN hash TEXT NOT NULL DEFAULT '';
ALTER TABLE proxy_status ADD COLUMN stream TEXT NOT NULL DEFAULT '';
ALTER TABLE report ADD COLUMN stream TEXT NOT NULL DEFAULT '';
